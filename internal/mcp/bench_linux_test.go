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

// door is a real server with real sandboxes, reached by MCP.
type door struct {
	*servertest.Bench
	url     string
	handler *Handler
}

func open(t *testing.T, o Options) *door {
	t.Helper()
	d := &door{Bench: servertest.New(t, server.Options{})}
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

// connect speaks as a client of one version of the protocol.
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

// overHTTP connects in the era of sessions.
func (d *door) overHTTP(t *testing.T, o *sdk.ClientOptions) *sdk.ClientSession {
	t.Helper()
	return connect(t, &sdk.StreamableClientTransport{Endpoint: d.url}, o, legacy)
}

// overStdio connects by pipes, as a process that an agent starts is.
func (d *door) overStdio(t *testing.T, o StdioOptions, co *sdk.ClientOptions) *sdk.ClientSession {
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

// use calls a tool and reads its structured result.
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

// text is what a model reads.
func text(r *sdk.CallToolResult) string {
	var b strings.Builder
	for _, c := range r.Content {
		if x, ok := c.(*sdk.TextContent); ok {
			b.WriteString(x.Text)
		}
	}
	return b.String()
}
