//go:build linux

package servertest

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/recluse-dev/recluse/internal/server"
)

// declared returns the responses in the OpenAPI document, by method and path, and then by status.
var declared = sync.OnceValues(func() (map[string]map[string]any, error) {
	raw, err := server.Document("1.0.0")
	if err != nil {
		return nil, err
	}
	var doc struct {
		Paths map[string]map[string]struct{ Responses map[string]any }
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return nil, err
	}
	out := map[string]map[string]any{}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			out[strings.ToUpper(method)+" "+path] = op.Responses
		}
	}
	return out, nil
})

// statusCheck is a log's handler. It fails the test over a request whose answer has a status that the document does not
// declare.
type statusCheck struct {
	slog.Handler
	t testing.TB
}

// Enabled implements slog.Handler. It returns true because the log line of each request is needed.
func (h statusCheck) Enabled(context.Context, slog.Level) bool { return true }

// WithAttrs implements slog.Handler.
func (h statusCheck) WithAttrs(attrs []slog.Attr) slog.Handler {
	return statusCheck{h.Handler.WithAttrs(attrs), h.t}
}

// WithGroup implements slog.Handler.
func (h statusCheck) WithGroup(name string) slog.Handler {
	return statusCheck{h.Handler.WithGroup(name), h.t}
}

// Handle implements slog.Handler.
func (h statusCheck) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "request" {
		h.check(r)
	}
	if !h.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func (h statusCheck) check(r slog.Record) {
	attrs := map[string]string{}
	r.Attrs(func(a slog.Attr) bool {
		attrs[a.Key] = a.Value.String()
		return true
	})
	routes, err := declared()
	if err != nil {
		h.t.Error(err)
		return
	}
	responses, known := routes[attrs["method"]+" "+attrs["route"]]
	status := attrs["status"]
	if known && status != "0" && responses[status] == nil && responses[status[:1]+"XX"] == nil { // 0: the connection was cut
		h.t.Errorf("%s %s: status %s (%s) is not declared in the OpenAPI document",
			attrs["method"], attrs["route"], status, attrs["code"])
	}
}
