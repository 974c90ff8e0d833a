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
	// connectionIdle is the idle timeout of a connection. Its session hibernates much earlier.
	connectionIdle = 24 * time.Hour

	statelessVersion = "2026-07-28" // first version of the protocol without MCP sessions
)

// Handler serves MCP over HTTP to the callers of the HTTP API.
type Handler struct {
	mcp *mcpServer
	*Transport
	loop    *loopback
	endings sync.WaitGroup
	closing chan struct{}
	once    sync.Once
	calls   sync.Map // requests in progress: id → context.Context
}

// NewHandler returns a handler of MCP requests. Each tool call becomes requests to handler, the HTTP API, with the
// credentials of the MCP request. Call Close after the last request.
func NewHandler(handler http.Handler, o Options) *Handler {
	h := &Handler{loop: newLoopback(handler), closing: make(chan struct{})}
	h.mcp = newServer(o, h.linkFor)
	h.Transport = NewTransport(h.mcp.server)
	return h
}

// Close closes all connections. Sessions stay for the next server.
func (h *Handler) Close() {
	h.once.Do(func() {
		close(h.closing)
		h.mcp.subscriptions.close()
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
		// With a user id, the SDK refuses other callers on the connections of this caller.
		next = auth.RequireBearerToken(func(context.Context, string, *http.Request) (*auth.TokenInfo, error) {
			return &auth.TokenInfo{UserID: who.Tenant + "/" + who.Actor}, nil
		}, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})(next)
	}
	next.ServeHTTP(w, r)
}

// identify returns the caller as the API identifies it. It is called before the MCP request is handled.
func (h *Handler) identify(r *http.Request) (v1.Server, error) {
	c, err := h.loop.client(r.Header)
	if err != nil {
		return v1.Server{}, err
	}
	return c.Server(r.Context())
}

// linkFor returns the link of a call that arrived over HTTP.
func (h *Handler) linkFor(e *sdk.RequestExtra, s *sdk.ServerSession) (*link, error) {
	var header http.Header
	if e != nil {
		header = e.Header
	}
	c, err := h.loop.client(header)
	if err != nil {
		return nil, err
	}
	l := &link{client: c, clientGone: h.requestContext(header.Get(headerCall)), onMade: h.endWithConnection(c)}
	if id := s.ID(); id != "" {
		// The id is a secret of the client, but names of sessions are not, so the name contains only a hash.
		sum := sha256.Sum256([]byte(id))
		l.ownSession = "mcp-" + hex.EncodeToString(sum[:8])
	}
	return l, nil
}

// requestContext returns the ctx of the HTTP request with this id, or a cancelled ctx if the request has ended. A
// client cannot fetch an answer later, in any version of the protocol, so a call ends with its request.
func (h *Handler) requestContext(id string) context.Context {
	if ctx, ok := h.calls.Load(id); ok {
		return ctx.(context.Context)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// endWithConnection returns a function that ends an item when its connection ends.
func (h *Handler) endWithConnection(c *client.Client) func(*sdk.ServerSession, ownedItem) {
	return func(s *sdk.ServerSession, made ownedItem) {
		h.endings.Go(func() {
			_ = s.Wait() // however it ended
			h.mcp.owners.Delete(s)
			select {
			case <-h.closing: // sessions outlive the server
				return
			default:
			}
			ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
			defer cancel()
			if err := made.end(ctx, c); err != nil {
				h.mcp.opts.Logger.Warn("cannot end a session or snapshot of a closed MCP connection",
					"session", made.session, "snapshot", made.snapshot, "error", err)
			}
		})
	}
}

// sameOrigin returns an error for a request that a browser sent for a page of another origin.
func sameOrigin(r *http.Request) error {
	origin := r.Header.Get("Origin")
	if origin == "" || origin == "http://"+r.Host || origin == "https://"+r.Host {
		return nil
	}
	return &v1.Error{
		Code:    v1.CodeOrigin,
		Op:      "check access",
		Message: "requests from web pages of other origins are not allowed",
	}
}
