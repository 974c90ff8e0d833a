package e2b

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/e2b/wire"
	"github.com/recluse-dev/recluse/session"
)

// The ports of a sandbox that the data plane itself answers.
const (
	envdPort        = wire.EnvdPort
	interpreterPort = 49999
)

// envdVersion is the version of E2B's guest whose features we have. The SDKs switch features on by it.
const envdVersion = "0.6.13"

const (
	headerSandbox = wire.HeaderSandbox
	headerPort    = wire.HeaderPort
	headerKey     = wire.HeaderKey
	headerToken   = wire.HeaderToken
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
	// Spec is that of sandboxes that are not made from a snapshot.
	Spec v1.Spec
	// MaxUpload is the size of an uploaded file in bytes.
	MaxUpload int64
	// Domain is the domain of the host names of ports, with or without a port; empty: localhost.
	Domain string
	// CheckSpec refuses a spec that callers over the network may not use.
	CheckSpec func(v1.Spec) error
	// ServePort sends a request to a port of a session.
	ServePort func(w http.ResponseWriter, r *http.Request, ses *session.Session, port uint16)
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
	metadata   metadataLock
	stall      time.Duration // stallTimeout, except in tests
	queued     atomic.Int64  // bytes in all queues of events
	ctx        context.Context
	stop       context.CancelFunc
}

// New returns a handler. The caller closes it when the server stops.
func New(ctx context.Context, opts Options) *Handler {
	h := &Handler{opts: opts, manager: opts.Manager, search: newSearchLimit(), stall: stallTimeout}
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
var controlPaths = []string{"sandboxes", "snapshots", "templates", "secrets", "volumes", "volumecontent", "api-keys"}

// dataPaths are the paths of the data plane, or their beginning.
var dataPaths = []string{"/files", "/execute", "/contexts", "/process.Process/", "/filesystem.Filesystem/", "/envs"}

// Claims reports whether a request belongs to this API.
func (h *Handler) Claims(r *http.Request) bool {
	if id, port, ok := target(r); ok {
		return port == envdPort || port == interpreterPort || h.sandbox(r.Context(), id) != nil
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

// nobody is an id that no session has.
const nobody = "@"

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
		return nobody, envdPort, true // they disagree
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
	return id, port, dashed && domain != "" && err == nil && port > 0 && port < 1<<16
}

// sandbox returns the sandbox with an id, of any tenant, or nil. Sessions whose names are not random are not found: who
// knows a random id may use the ports of the sandbox, if its traffic is public.
func (h *Handler) sandbox(ctx context.Context, id string) *session.Info {
	if len(id) != 2*idBytes || strings.Trim(id, "0123456789abcdef") != "" {
		return nil
	}
	var found []session.Info
	for i, err := range h.manager.List(ctx, session.ListOptions{Tenant: "*"}) {
		if err == nil && i.Key.Name == id && ours(i) {
			found = append(found, i)
		}
	}
	if len(found) != 1 { // the same id twice cannot be chance
		return nil
	}
	return &found[0]
}

// port sends a request to a program in a sandbox.
func (h *Handler) port(w http.ResponseWriter, r *http.Request, id string, port int) {
	i := h.sandbox(r.Context(), id)
	if i == nil {
		gone(w, id, notFound)
		return
	}
	if i.Labels[labelPublic] == "false" && !same(r.Header.Get(headerTraffic), h.token(trafficToken, i.Key, i.ID)) {
		failWith(w, errToken)
		return
	}
	r, ok := h.use(w, r, *i)
	if !ok {
		return
	}
	ses, err := h.manager.Get(r.Context(), i.Key)
	if err != nil {
		gone(w, id, notFound)
		return
	}
	r.Header.Del(headerTraffic)
	h.opts.ServePort(w, r, ses, uint16(port))
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	rc := http.NewResponseController(w)
	w = &patientWriter{w, rc, h.stall}
	r.Body = &patientBody{r.Body, rc, h.stall}
	defer func() { _ = rc.SetWriteDeadline(time.Time{}) }() // not every connection has deadlines
	id, port, ok := target(r)
	switch {
	case ok && port != envdPort && port != interpreterPort:
		h.port(w, r, id, port)
	case ok || slices.ContainsFunc(dataPaths, func(d string) bool { return strings.HasPrefix(r.URL.Path, d) }):
		h.data.ServeHTTP(w, r)
	default:
		h.control.ServeHTTP(w, r)
	}
}
