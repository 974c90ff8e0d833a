package e2b

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/e2b/wire"
	"github.com/recluse-dev/recluse/internal/remoteguest"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/sandboxtest"
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
			b, err := New(Options{URL: server.URL, Key: key, Remote: remoteguest.Options{Dir: t.TempDir(), Guest: guest}})
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

// TestAHostileGuest has an attacker in the place of our guest, at a service that is honest otherwise.
func TestAHostileGuest(t *testing.T) {
	testneed.All(t, "TestAHostileService has a service that is the attacker")
	path := sandboxtest.HostileGuest(t)
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(program)
	s := newService(t)
	b := s.backend(t, s.server.URL, func(o *Options) {
		o.Remote.Guest = bundle.Program{Path: path, Hash: hex.EncodeToString(sum[:])}
	})
	sandboxtest.Attacks(t, b, "output beside the stream", "both ends closed")
	if left := s.running(t); len(left) > 0 {
		t.Errorf("left at the service: %q", left)
	}
}
