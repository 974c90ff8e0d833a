package e2b

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/time/rate"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/session"
)

// The kinds of tokens of a sandbox.
const (
	envdToken    = "envd"    // commands, files and code
	trafficToken = "traffic" // ports, and contexts of the interpreter
)

// maxToken is the length of a token: a longer one is not examined.
const maxToken = 256

// mac returns 128 bits that only the holder of the secret can compute.
func (h *Handler) mac(kind, of string) string {
	m := hmac.New(sha256.New, h.opts.Secret)
	m.Write([]byte(kind + "\x00" + of))
	return hex.EncodeToString(m.Sum(nil)[:16])
}

// token returns the token of a session. It contains the tenant, so that the session is found by its name, and a proof
// that we issued a token for that tenant: without it nobody learns which names a tenant uses.
func (h *Handler) token(kind string, key session.Key, id string) string {
	return h.mac(kind, id) + h.mac("tenant", key.Tenant) + hex.EncodeToString([]byte(key.Tenant))
}

// tenantOf returns the tenant of a token that we issued.
func (h *Handler) tenantOf(token string) (string, bool) {
	if len(token) < 64 || len(token) > maxToken {
		return "", false
	}
	tenant, err := hex.DecodeString(token[64:])
	return string(tenant), err == nil && same(token[32:64], h.mac("tenant", string(tenant)))
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

var errToken = &v1.Error{
	Code:    v1.CodeUnauthorized,
	Op:      "check access",
	Message: "the access token is missing or invalid",
	Remedy:  "connect to the sandbox with a key, which returns its token",
}

// holder authenticates a caller of the data plane and returns the session. With ok false the answer was sent.
func (h *Handler) holder(w http.ResponseWriter, r *http.Request) (*session.Session, *http.Request, bool) {
	id, port, _ := target(r)
	token, kind := r.Header.Get(headerToken), envdToken
	if token == "" && (port == interpreterPort || strings.HasPrefix(r.URL.Path, "/contexts")) {
		token, kind = r.Header.Get(headerTraffic), trafficToken // requests about contexts have no other token
	}
	var ses *session.Session
	var err error
	switch {
	case token != "":
		tenant, ok := h.tenantOf(token)
		if !ok {
			failWith(w, errToken)
			return nil, nil, false
		}
		if id == "" { // SDKs before 2.11 do not name the sandbox in requests for files
			id = h.idByToken(r.Context(), tenant, kind, token)
		}
		ses, err = h.manager.Get(r.Context(), session.Key{Tenant: tenant, Name: id})
		if err == nil && !same(token, h.token(kind, ses.Key(), ses.ID())) {
			err = errToken
		}
	case r.URL.Query().Has("signature"):
		ses, err = h.bySignature(r, id)
	default:
		err = errToken
	}
	switch {
	case err == nil:
	case statusOf(err) == http.StatusNotFound, v1.CodeOf(err) == v1.CodeInvalidKey:
		gone(w, id, notFound)
		return nil, nil, false
	default:
		failWith(w, err)
		return nil, nil, false
	}
	r, ok := h.use(w, r, ses.Info())
	return ses, r, ok
}

// use admits a request to the inside of a sandbox. A paused sandbox is only resumed if its creator asked for that; it
// then runs for as long as it was created for. With ok false the answer was sent.
func (h *Handler) use(w http.ResponseWriter, r *http.Request, i session.Info) (*http.Request, bool) {
	ctx, err := h.opts.Access.AdmitHolder(r.Context(), i)
	over := i.Expires != nil && !time.Now().Before(*i.Expires)
	switch resumes := i.Labels[labelResume] == "true"; {
	case err != nil:
	case i.State == v1.StateHibernated && !resumes:
		gone(w, i.Key.Name, "The sandbox is paused")
		return nil, false
	case resumes && (over || i.State == v1.StateHibernated):
		var ses *session.Session
		if ses, err = h.manager.Get(ctx, i.Key); err == nil && i.Policy.Expires > 0 {
			err = ses.SetExpiry(ctx, time.Now().Add(i.Policy.Expires.Std()))
		}
	}
	if err != nil {
		failWith(w, err)
		return nil, false
	}
	return r.WithContext(ctx), true
}

// idByToken returns the name of the session of a token, or "".
func (h *Handler) idByToken(ctx context.Context, tenant, kind, token string) string {
	found := ""
	for i, err := range h.manager.List(ctx, session.ListOptions{Tenant: tenant}) {
		if err == nil && same(token, h.token(kind, i.Key, i.ID)) {
			found = i.Key.Name
		}
	}
	return found
}

// Searches for the sandbox of a signature cost a hash for each session, and their caller has no key.
const (
	searchRate  = 20 // per second
	searchBurst = 50
)

type searchLimit struct{ *rate.Limiter }

func newSearchLimit() searchLimit { return searchLimit{rate.NewLimiter(searchRate, searchBurst)} }

// bySignature returns the session whose token has signed the request. A signed link does not name its sandbox if all
// sandboxes have the same URL. The search takes the same time whether and where it finds one.
func (h *Handler) bySignature(r *http.Request, id string) (*session.Session, error) {
	q := r.URL.Query()
	op := "read"
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		op = "write"
	}
	suffix := ""
	if q.Has("signature_expiration") {
		end, err := strconv.ParseInt(q.Get("signature_expiration"), 10, 64)
		if err != nil {
			return nil, invalid("signature_expiration is not a number")
		}
		if time.Now().Unix() > end {
			return nil, &v1.Error{Code: v1.CodeUnauthorized, Op: "check access", Message: "the signature has expired"}
		}
		suffix = ":" + q.Get("signature_expiration")
	}
	if !h.search.Allow() {
		return nil, &v1.Error{
			Code:    v1.CodeRateLimited,
			Op:      "check access",
			Message: "too many requests with signed links",
			Retry:   true,
		}
	}
	var found session.Key
	for i, err := range h.manager.List(r.Context(), session.ListOptions{Tenant: "*"}) {
		if err != nil {
			return nil, err
		}
		if id != "" && i.Key.Name != id {
			continue
		}
		token := h.token(envdToken, i.Key, i.ID)
		sum := sha256.Sum256([]byte(q.Get("path") + ":" + op + ":" + q.Get("username") + ":" + token + suffix))
		if same(q.Get("signature"), "v1_"+base64.RawStdEncoding.EncodeToString(sum[:])) {
			found = i.Key
		}
	}
	if found.Name == "" {
		return nil, &v1.Error{Code: v1.CodeUnauthorized, Op: "check access", Message: "the signature is invalid"}
	}
	return h.manager.Get(r.Context(), found)
}
