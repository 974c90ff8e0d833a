package e2b

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/session"
)

// The ports of a sandbox that the data plane itself answers.
const (
	envdPort        = 49983 // processes and files
	interpreterPort = 49999
)

// envdVersion is the version of E2B's guest whose features we have. The SDKs switch features on by it.
const envdVersion = "0.6.13"

const (
	headerSandbox = "E2b-Sandbox-Id"
	headerPort    = "E2b-Sandbox-Port"
	headerKey     = "X-API-Key"
	headerToken   = "X-Access-Token"
	headerTraffic = "E2b-Traffic-Access-Token"
)

// maxBody is the size of a JSON request.
const maxBody = 8 << 20

// Scope is how much a key must permit: read or execute.
type Scope string

// The scopes of requests.
const (
	Read    Scope = "read"
	Execute Scope = "execute"
)

// Access authenticates callers. The returned contexts carry the actor.
type Access interface {
	// AdmitKey admits a caller with an API key.
	AdmitKey(r *http.Request, key string, scope string) (context.Context, error)
	// AdmitHolder admits a caller that has proved to hold a token of a session.
	AdmitHolder(ctx context.Context, ses session.Info) (context.Context, error)
}

// Options configure a Handler. All fields are required.
type Options struct {
	Manager *session.Manager
	Access  Access
	Secret  []byte // from which tokens are derived; the same for the life of the sessions
	// MaxUpload is the size of an uploaded file in bytes.
	MaxUpload int64
	// CheckSpec refuses a spec that callers over the network may not use.
	CheckSpec func(v1.Spec) error
}

// Handler serves the API.
type Handler struct {
	opts       Options
	manager    *session.Manager
	control    *http.ServeMux
	data       *http.ServeMux
	watchers   watchers
	starts     starts
	executions executions
	search     searchLimit
	ctx        context.Context
	stop       context.CancelFunc
}

// New returns a handler. The caller closes it when the server stops.
func New(ctx context.Context, opts Options) *Handler {
	h := &Handler{opts: opts, manager: opts.Manager, search: newSearchLimit()}
	h.ctx, h.stop = context.WithCancel(context.WithoutCancel(ctx))
	h.control = h.controlPlane()
	h.data = h.dataPlane()
	return h
}

// Close ends the watchers of directories, and streams that would never end.
func (h *Handler) Close() {
	h.stop()
	h.watchers.close()
}

// controlPaths are the first segments of the paths of the control plane, below an optional version.
var controlPaths = []string{"sandboxes", "snapshots", "templates", "secrets", "volumes", "volumecontent"}

// dataPaths are the paths of the data plane, or their beginning.
var dataPaths = []string{"/files", "/execute", "/contexts", "/process.Process/", "/filesystem.Filesystem/", "/envs"}

// Claims reports whether a request belongs to this API.
func (h *Handler) Claims(r *http.Request) bool {
	if _, _, ok := target(r); ok {
		return true
	}
	p := r.URL.Path
	if p == "/health" || slices.ContainsFunc(dataPaths, func(d string) bool { return strings.HasPrefix(p, d) }) {
		return true
	}
	first, rest, _ := strings.Cut(strings.TrimPrefix(p, "/"), "/")
	if first == "v2" || first == "v3" {
		first, _, _ = strings.Cut(rest, "/")
	}
	return slices.Contains(controlPaths, first)
}

// target returns the sandbox and the port that a request of the data plane is for. ok is false for requests of the
// control plane, and for those of the data plane that do not name a sandbox.
func target(r *http.Request) (id string, port int, ok bool) {
	id, port, named := hostTarget(r.Host)
	head := r.Header.Get(headerSandbox)
	if head == "" {
		return id, port, named
	}
	p, err := strconv.Atoi(r.Header.Get(headerPort))
	if err != nil {
		p = envdPort
	}
	if named && (id != head || port != p) {
		return "", 0, true // they disagree: no sandbox
	}
	return head, p, true
}

// hostTarget parses a host name of the form PORT-ID.domain.
func hostTarget(host string) (id string, port int, ok bool) {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	label, domain, _ := strings.Cut(host, ".")
	number, id, dashed := strings.Cut(label, "-")
	port, err := strconv.Atoi(number)
	if !dashed || domain == "" || err != nil || port != envdPort && port != interpreterPort {
		return "", 0, false // other ports are those of programs inside
	}
	return id, port, true
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, port, ok := target(r)
	switch {
	case ok && port != envdPort && port != interpreterPort:
		fail(w, http.StatusBadGateway, "the sandbox or its port was not found")
	case ok || slices.ContainsFunc(dataPaths, func(d string) bool { return strings.HasPrefix(r.URL.Path, d) }):
		h.data.ServeHTTP(w, r)
	default:
		h.control.ServeHTTP(w, r)
	}
}
