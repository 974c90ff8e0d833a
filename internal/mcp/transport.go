package mcp

import (
	"net/http"
	"slices"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/recluse-dev/recluse/internal/problem"
)

// Transport serves an MCP server over streamable HTTP. Requests of stateless protocol versions are independent of each
// other. All other requests belong to a connection with an id.
type Transport struct {
	server              *sdk.Server
	stateful, stateless http.Handler
}

// NewTransport returns the transport of an MCP server. It refuses requests from web pages of other origins, but does
// not check credentials.
func NewTransport(s *sdk.Server) *Transport {
	get := func(*http.Request) *sdk.Server { return s }
	return &Transport{
		server: s,
		stateful: sdk.NewStreamableHTTPHandler(get, &sdk.StreamableHTTPOptions{
			SessionTimeout: connectionIdle, MaxRequestBodyBytes: maxMessage,
		}),
		stateless: sdk.NewStreamableHTTPHandler(get, &sdk.StreamableHTTPOptions{
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
	if r.Header.Get("Mcp-Protocol-Version") >= statelessVersion {
		t.stateless.ServeHTTP(w, r)
		return
	}
	t.stateful.ServeHTTP(w, r)
}

// Close closes all connections.
func (t *Transport) Close() {
	for _, s := range slices.Collect(t.server.Sessions()) {
		_ = s.Close() // fails if the client is gone already
	}
}
