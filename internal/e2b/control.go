package e2b

import (
	"net/http"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/session"
)

// controlPlane returns the routes that manage sandboxes.
func (h *Handler) controlPlane() *http.ServeMux {
	mux := http.NewServeMux()
	route := func(pattern string, scope Scope, f func(c *call) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { h.admit(w, r, scope, f) })
	}
	for prefix, timeout := range map[string]time.Duration{"": defaultTimeoutV1, "/v2": defaultTimeout} {
		route("POST "+prefix+"/sandboxes", Execute, func(c *call) error { return c.create(timeout) })
		route("POST "+prefix+"/sandboxes/{id}/connect", Execute, on((*call).connect))
		route("GET "+prefix+"/sandboxes", Read, func(c *call) error { return c.list(prefix == "") })
	}
	const sandbox = "/sandboxes/{id}"
	route("GET "+sandbox, Read, on((*call).show))
	route("DELETE "+sandbox, Execute, on((*call).kill))
	route("POST "+sandbox+"/resume", Execute, on((*call).connect))
	route("POST "+sandbox+"/pause", Execute, on((*call).pause))
	route("POST "+sandbox+"/timeout", Execute, on((*call).timeout))
	route("POST "+sandbox+"/refreshes", Execute, on((*call).refresh))
	route("PUT "+sandbox+"/network", Execute, on((*call).network))
	route("POST "+sandbox+"/fork", Execute, on((*call).fork))
	route("POST "+sandbox+"/snapshots", Execute, on((*call).snapshot))
	route("GET "+sandbox+"/metrics", Read, on((*call).metrics))
	for _, prefix := range []string{"", "/v2"} {
		first := prefix == ""
		logs := func(c *call, ses *session.Session) error { return c.logs(ses, first) }
		route("GET "+prefix+sandbox+"/logs", Read, on(logs))
	}
	route("GET /snapshots", Read, (*call).snapshots)
	route("GET /templates", Read, (*call).templates)
	route("DELETE /templates/{id}", Execute, (*call).removeTemplate)
	for what, path := range map[string]string{
		"building templates": "templates",
		"volumes":            "volumes",
		"volume content":     "volumecontent",
		"secrets":            "secrets",
		"making keys here, instead of with recluse key create,": "api-keys",
	} {
		route("/"+path, Read, missing(what))
		route("/"+path+"/", Read, missing(what))
		route("/v2/"+path+"/", Read, missing(what))
		route("/v3/"+path, Read, missing(what))
	}
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		fail(w, http.StatusNotFound, "this server does not have this path or method of the API")
	})
	return mux
}

// missing returns a handler for a part of the API that this server does not have.
func missing(what string) func(*call) error {
	return func(*call) error { return unsupported(what) }
}

// call is one request of the control plane.
type call struct {
	*Handler
	w      http.ResponseWriter
	r      *http.Request
	tenant string
}

// admit authenticates the caller and runs f.
func (h *Handler) admit(w http.ResponseWriter, r *http.Request, scope Scope, f func(*call) error) {
	ctx, err := h.opts.Access.AdmitKey(r, r.Header.Get(headerKey), string(scope))
	if err != nil {
		failWith(w, err)
		return
	}
	c := &call{Handler: h, w: w, r: r.WithContext(ctx), tenant: session.ActorOf(ctx).Tenant}
	if err := f(c); err != nil {
		failWith(w, err)
	}
}

// on adapts a handler that needs the session that the path names.
func on(f func(*call, *session.Session) error) func(*call) error {
	return func(c *call) error {
		ses, err := c.manager.Get(c.r.Context(), session.Key{Tenant: c.tenant, Name: c.r.PathValue("id")})
		if err != nil {
			if v1.CodeOf(err) == v1.CodeInvalidKey {
				err = &v1.Error{Code: v1.CodeSessionNotFound, Op: "find sandbox", Message: notFound}
			}
			return err
		}
		return f(c, ses)
	}
}

func (c *call) reply(status int, body any) error {
	reply(c.w, status, body)
	return nil
}

func (c *call) done() error {
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}
