package mcp

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/internal/problem"
)

const (
	// connectionIdle is how long a connection nobody uses is remembered. Its sandbox is put to sleep much earlier.
	connectionIdle = 24 * time.Hour

	stateless = "2026-07-28" // the version of the protocol from which on there are no sessions
)

// Handler serves MCP over HTTP, for the callers of an API.
type Handler struct {
	face *face
	*Transport
	loop    *loop
	endings sync.WaitGroup
	leaving chan struct{}
	once    sync.Once
	calls   sync.Map // requests that are being answered: id → context.Context
}

// NewHandler serves what api can do: each call is a request to it, with the credentials of the one that came in. Close it when
// nobody is served any more.
func NewHandler(handler http.Handler, o Options) *Handler {
	h := &Handler{loop: newLoop(handler), leaving: make(chan struct{})}
	h.face = newFace(o, h.reach)
	h.Transport = NewTransport(h.face.server)
	return h
}

// Close ends all connections. Sessions live on for the next server.
func (h *Handler) Close() {
	h.once.Do(func() {
		close(h.leaving)
		h.face.subscriptions.close()
		h.Transport.Close()
		h.endings.Wait()
		h.loop.stop()
	})
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := sameOrigin(r); err != nil {
		problem.Write(w, problem.Of(err))
		return
	}
	r = r.Clone(r.Context())
	id := ids.Hex(16)
	r.Header.Set(headerRemote, r.RemoteAddr)
	r.Header.Set(headerHost, r.Host)
	r.Header.Set(headerCall, id)
	who, err := h.identify(r)
	if err != nil {
		problem.Write(w, problem.Of(err))
		return
	}
	h.calls.Store(id, r.Context())
	defer h.calls.Delete(id)
	next := http.Handler(h.Transport)
	if r.Header.Get("Authorization") != "" {
		// The SDK then lets nobody else into the connections of this caller.
		next = auth.RequireBearerToken(func(context.Context, string, *http.Request) (*auth.TokenInfo, error) {
			return &auth.TokenInfo{UserID: who.Tenant + "/" + who.Actor}, nil
		}, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})(next)
	}
	next.ServeHTTP(w, r)
}

// identify asks the API whom it takes the caller for, before anything of MCP is done.
func (h *Handler) identify(r *http.Request) (v1.Server, error) {
	c, err := h.loop.client(r.Header)
	if err != nil {
		return v1.Server{}, err
	}
	return c.Server(r.Context())
}

// reach is how a call that came in by HTTP reaches the API.
func (h *Handler) reach(e *sdk.RequestExtra, s *sdk.ServerSession) (*link, error) {
	var header http.Header
	if e != nil {
		header = e.Header
	}
	c, err := h.loop.client(header)
	if err != nil {
		return nil, err
	}
	l := &link{client: c, gone: h.present(header.Get(headerCall)), made: h.endWith(c)}
	if id := s.ID(); id != "" {
		// The id is a secret of the client's, and names are not.
		sum := sha256.Sum256([]byte(id))
		l.own = "mcp-" + hex.EncodeToString(sum[:8])
	}
	return l, nil
}

// present gives the context of a request that is being answered. Without a way to take up an answer later, one whose caller has gone
// is of no use to anybody, in either era.
func (h *Handler) present(id string) context.Context {
	if ctx, ok := h.calls.Load(id); ok {
		return ctx.(context.Context)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// endWith ends something with the connection it was made for.
func (h *Handler) endWith(c *client.Client) func(*sdk.ServerSession, belonging) {
	return func(s *sdk.ServerSession, made belonging) {
		h.endings.Go(func() {
			_ = s.Wait() // however it ended
			h.face.owners.Delete(s)
			select {
			case <-h.leaving: // the server goes, the session does not
				return
			default:
			}
			ctx, cancel := context.WithTimeout(context.Background(), endWait)
			defer cancel()
			if err := made.end(ctx, c); err != nil {
				h.face.opts.Logger.Warn("cannot end what an MCP connection made", "session", made.session, "snapshot", made.snapshot, "error", err)
			}
		})
	}
}

// sameOrigin refuses what a page of another site sent from a browser, whatever credentials the browser has.
func sameOrigin(r *http.Request) error {
	origin := r.Header.Get("Origin")
	if origin == "" || origin == "http://"+r.Host || origin == "https://"+r.Host {
		return nil
	}
	return &v1.Error{Code: v1.CodeOrigin, Op: "check access", Message: "pages of other origins may not speak to this server"}
}
