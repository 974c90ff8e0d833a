package mcp

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
)

// mcpFixture is a real server with real sandboxes and an MCP handler.
type mcpFixture struct {
	*servertest.Bench
	url     string
	handler *Handler
}

func open(t *testing.T, o Options) *mcpFixture {
	t.Helper()
	d := &mcpFixture{Bench: servertest.New(t, server.Options{})}
	d.handler = NewHandler(d.Server.Handler(), o)
	s := httptest.NewServer(d.handler)
	d.url = s.URL
	t.Cleanup(func() {
		s.CloseClientConnections()
		d.handler.Close()
		s.Close()
	})
	return d
}

// withKey sends a key with each request.
type withKey struct{ key string }

func (k withKey) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+k.key)
	return http.DefaultTransport.RoundTrip(r)
}

// connect returns a client of one version of the protocol.
func connect(t *testing.T, tr sdk.Transport, o *sdk.ClientOptions, version string) *sdk.ClientSession {
	t.Helper()
	c := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, o)
	var so *sdk.ClientSessionOptions
	if version != "" {
		so = &sdk.ClientSessionOptions{ProtocolVersion: version}
	}
	s, err := c.Connect(t.Context(), tr, so)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// overHTTP connects over HTTP with a version of the protocol that has MCP sessions.
func (d *mcpFixture) overHTTP(t *testing.T, o *sdk.ClientOptions) *sdk.ClientSession {
	t.Helper()
	return connect(t, &sdk.StreamableClientTransport{Endpoint: d.url}, o, legacy)
}

// overStdio connects with pipes, as an agent connects to a process that it starts.
func (d *mcpFixture) overStdio(t *testing.T, o StdioOptions, co *sdk.ClientOptions) *sdk.ClientSession {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := Serve(context.Background(), d.Trusted, inR, outW, o)
		_ = outW.Close()
		done <- err
	}()
	t.Cleanup(func() {
		_ = inW.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return connect(t, &sdk.IOTransport{Reader: outR, Writer: inW}, co, legacy)
}

// use calls a tool and decodes its structured result.
func use[T any](t *testing.T, s *sdk.ClientSession, name string, args map[string]any) (out T, res *sdk.CallToolResult) {
	t.Helper()
	res, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		t.Fatal(err)
	}
	if res.StructuredContent != nil {
		raw, err := json.Marshal(res.StructuredContent)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(raw, &out); err != nil {
			t.Fatal(err)
		}
	}
	return out, res
}

// text returns the text of a result, which a model reads.
func text(r *sdk.CallToolResult) string {
	var b strings.Builder
	for _, c := range r.Content {
		if x, ok := c.(*sdk.TextContent); ok {
			b.WriteString(x.Text)
		}
	}
	return b.String()
}
