package e2b

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/e2b/wire"
	"github.com/recluse-dev/recluse/internal/remoteguest"
	"github.com/recluse-dev/recluse/internal/remoteguest/remotetest"
	"github.com/recluse-dev/recluse/sandbox"
)

// TestAHostileService is not E2B: it answers what harms its client most.
func TestAHostileService(t *testing.T) {
	t.Parallel()
	junk := strings.Repeat("\xf7rc1 this is no frame", 10_000)
	for _, tt := range []struct {
		name, id string
		create   func(w http.ResponseWriter)
		list     func(w http.ResponseWriter)
		output   func(send func([]byte) error) error
	}{
		{name: "an ID that is a path", id: "../../v2/keys?"},
		{name: "an ID that is a host", id: "x.evil.example/"},
		{name: "no JSON", create: func(w http.ResponseWriter) { _, _ = w.Write([]byte("<html>")) }},
		{name: "an answer without end", create: func(w http.ResponseWriter) {
			for {
				if _, err := w.Write([]byte(junk)); err != nil {
					return
				}
			}
		}},
		{name: "another address", create: func(w http.ResponseWriter) {
			w.Header().Set("Location", "http://evil.example/")
			w.WriteHeader(http.StatusTemporaryRedirect)
		}},
		{name: "a list without end", id: "x/", list: func(w http.ResponseWriter) {
			w.Header().Set(wire.HeaderNext, time.Now().String())
			_ = json.NewEncoder(w).Encode(make([]wire.Details, 100))
		}},
		{name: "output without end", id: "good", output: func(send func([]byte) error) error {
			for {
				if err := send([]byte(junk)); err != nil {
					return err
				}
			}
		}},
		{name: "the end at once", id: "good", output: func(func([]byte) error) error { return nil }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			mux := http.NewServeMux()
			mux.HandleFunc("POST /v2/sandboxes", func(w http.ResponseWriter, _ *http.Request) {
				if tt.create != nil {
					tt.create(w)
					return
				}
				_ = json.NewEncoder(w).Encode(wire.Access{Sandbox: tt.id, Domain: "evil.example", Token: "token"})
			})
			mux.HandleFunc("GET /v2/sandboxes", func(w http.ResponseWriter, _ *http.Request) {
				if tt.list != nil {
					tt.list(w)
					return
				}
				// Sandboxes of others, which must not be ended.
				_ = json.NewEncoder(w).Encode([]wire.Details{{Sandbox: "foreign", State: wire.StateRunning}})
			})
			mux.HandleFunc("POST /files", func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
			mux.HandleFunc("DELETE /sandboxes/{id}", func(_ http.ResponseWriter, r *http.Request) {
				if id := r.PathValue("id"); id != "good" {
					t.Errorf("ended %q", id)
				}
			})
			mux.Handle("/process.Process/Start", connect.NewServerStreamHandler("/process.Process/Start",
				func(_ context.Context, _ *connect.Request[wire.StartRequest], s *connect.ServerStream[wire.StartResponse]) error {
					start := &wire.ProcessEvent{Event: &wire.ProcessEvent_Start{Start: &wire.ProcessEvent_StartEvent{Pid: 1}}}
					if err := s.Send(&wire.StartResponse{Event: start}); err != nil {
						return err
					}
					return tt.output(func(b []byte) error {
						data := &wire.ProcessEvent_DataEvent{Output: &wire.ProcessEvent_DataEvent_Stdout{Stdout: b}}
						return s.Send(&wire.StartResponse{Event: &wire.ProcessEvent{Event: &wire.ProcessEvent_Data{Data: data}}})
					})
				}))
			mux.Handle("/process.Process/SendInput", connect.NewUnaryHandler("/process.Process/SendInput",
				func(context.Context, *connect.Request[wire.SendInputRequest]) (*connect.Response[wire.SendInputResponse], error) {
					return connect.NewResponse(&wire.SendInputResponse{}), nil
				}))
			server := httptest.NewServer(mux)
			defer server.Close()
			defer server.CloseClientConnections()
			b, err := New(Options{URL: server.URL, Key: key, Remote: remoteguest.Options{Dir: t.TempDir(), Guest: remotetest.Guest}})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			sb, err := sandbox.Open(ctx, b, sandbox.Spec{})
			if err == nil {
				_ = sb.Close()
				t.Fatal("there is a sandbox")
			}
			if v1.CodeOf(err) == "" {
				t.Errorf("not a typed error: %v", err)
			}
			runtime.ReadMemStats(&after)
			if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 64<<20 {
				t.Errorf("the memory has grown by %d bytes", grown)
			}
		})
	}
}
