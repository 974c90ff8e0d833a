package server

import (
	"context"
	"net/http"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/session"
)

// Mount adds a handler that is not part of the API. The handler authenticates its callers itself, for example by
// calling Handler with their credentials. onStop is called when the server begins to stop. Call Mount before Serve.
func (s *Server) Mount(pattern string, h http.Handler, onStop func()) {
	s.mux.Handle(pattern, h)
	context.AfterFunc(s.drain, onStop)
}

// Front answers the requests that claims accepts with a handler for the API of another protocol, before all routes.
// The handler authenticates its callers with AdmitKey and AdmitHolder. onStop is called when the server begins to stop.
// Its clients may call the server api.DOMAIN, below the domain of ports. Call Front before Serve.
func (s *Server) Front(claims func(*http.Request) bool, h http.Handler, onStop func()) {
	s.front, s.claims, s.hosts.api = h, claims, true
	context.AfterFunc(s.drain, onStop)
}

// ServePort sends a request that names a port by its host name to the port of a session. The caller has admitted it.
func (s *Server) ServePort(w http.ResponseWriter, r *http.Request, ses *session.Session, port uint16) {
	actor := session.ActorOf(r.Context())
	s.dispatch(w, r, &route{
		method: "any",
		path:   portHostRoute,
		long:   true,
		proxy:  true,
		handle: func(c *call) error {
			c.r = c.r.WithContext(session.WithActor(c.r.Context(), actor))
			return c.proxyHost(ses, port)
		},
	})
}

// NewKey creates a key of the default tenant for the server's own user.
func (s *Server) NewKey(ctx context.Context, k v1.NewAPIKey) (v1.APIKey, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "/v1/keys", nil)
	if err != nil {
		return v1.APIKey{}, err
	}
	who := principal{actor: "server", tenant: session.DefaultTenant, scope: scopeAdmin, operator: true, host: true}
	r = r.WithContext(session.WithActor(ctx, who.asActor()))
	return createKey(&call{s: s, r: r, route: &route{}, who: who}, k)
}

// ValidKey reports whether a key is known and valid.
func (s *Server) ValidKey(ctx context.Context, key string) bool {
	_, ok := s.access.check(ctx, key)
	return ok
}

// AdmitKey authenticates the caller of another protocol by its key, counts the request against its rate, and checks
// that the key has the scope. The returned context carries the actor.
func (s *Server) AdmitKey(r *http.Request, key, required string) (context.Context, error) {
	sc, err := parseScope(required)
	if err != nil {
		return nil, err
	}
	who, ok := s.access.check(r.Context(), key)
	if !ok || who.session != "" {
		return nil, &v1.Error{
			Code:    v1.CodeUnauthorized,
			Op:      "check access",
			Message: "the key is missing or unknown, has expired or was revoked",
		}
	}
	if _, err := s.rates.take(who.rate); err != nil {
		return nil, err
	}
	c := &call{s: s, r: r, route: &route{scope: sc}, who: who}
	if err := c.allow(); err != nil {
		return nil, err
	}
	return session.WithActor(r.Context(), who.asActor()), nil
}

// AdmitHolder admits a caller of another protocol that has proved to hold a token of a session. A token is valid as
// long as the key that created the session.
func (s *Server) AdmitHolder(ctx context.Context, of session.Info) (context.Context, error) {
	if !s.access.goodKey(of.APIKey, time.Now()) {
		return nil, &v1.Error{
			Code:    v1.CodeUnauthorized,
			Op:      "check access",
			Message: "the key that created the session has expired or was revoked",
		}
	}
	who := principal{actor: "token of " + of.Key.Name, tenant: of.Key.Tenant, key: of.APIKey}
	if of.APIKey != "" {
		who.rate = "key " + of.APIKey
	}
	if _, err := s.rates.take(who.rate); err != nil {
		return nil, err
	}
	return session.WithActor(ctx, who.asActor()), nil
}
