package mcp

import (
	"net/http"
	"slices"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/recluse-dev/recluse/internal/problem"
)

// Transport serves both eras of the protocol over streamable HTTP: requests that say they are of the later one stand for themselves,
// all others belong to a connection with an id.
type Transport struct {
	server              *sdk.Server
	connected, separate http.Handler
}

// NewTransport serves an MCP server. It lets in no page of another origin, and checks nobody's credentials.
func NewTransport(s *sdk.Server) *Transport {
	get := func(*http.Request) *sdk.Server { return s }
	return &Transport{
		server:    s,
		connected: sdk.NewStreamableHTTPHandler(get, &sdk.StreamableHTTPOptions{SessionTimeout: connectionIdle, MaxRequestBodyBytes: maxMessage}),
		separate: sdk.NewStreamableHTTPHandler(get, &sdk.StreamableHTTPOptions{
			Stateless: true, PropagateRequestCancellation: true, MaxRequestBodyBytes: maxMessage,
		}),
	}
}

// ServeHTTP implements http.Handler.
func (t *Transport) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := sameOrigin(r); err != nil {
		problem.Write(w, problem.Of(err))
		return
	}
	if r.Header.Get("Mcp-Protocol-Version") >= stateless {
		t.separate.ServeHTTP(w, r)
		return
	}
	t.connected.ServeHTTP(w, r)
}

// Close ends all connections.
func (t *Transport) Close() {
	for _, s := range slices.Collect(t.server.Sessions()) {
		_ = s.Close() // a client that has gone already is no failure
	}
}
