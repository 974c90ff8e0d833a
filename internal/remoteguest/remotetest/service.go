//go:build linux

package remotetest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/e2b"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/gvisor"
	"github.com/recluse-dev/recluse/sandbox/sandboxtest"
	"github.com/recluse-dev/recluse/session"
)

var (
	// shared is the directory of the services' sandboxes, root file systems and templates.
	shared string
	engine bundle.Program
	// Guest is the guest's program.
	Guest bundle.Program
)

// Main runs the tests of a package that uses services, and returns the exit code.
func Main(m *testing.M) (code int) {
	var err error
	engine, Guest, err = testbin.Programs()
	if err == nil {
		shared, err = os.MkdirTemp("", "recluse-service-")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(shared) }()
	code = m.Run()
	if err := sandboxtest.Leaks(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// E2BKey is a key of the service, in E2B's form.
const E2BKey = "e2b_0123456789abcdef0123456789abcdef01234567"

// keys admits callers with the key, unless it was revoked.
type keys struct{ revoked atomic.Bool }

func (k *keys) admit(ctx context.Context) (context.Context, error) {
	if k.revoked.Load() {
		return nil, &v1.Error{Code: v1.CodeUnauthorized, Message: "the key was revoked"}
	}
	return session.WithActor(ctx, session.Actor{Name: "test", Tenant: session.DefaultTenant}), nil
}

// AdmitKey implements e2b.Access.
func (k *keys) AdmitKey(r *http.Request, given, _ string) (context.Context, error) {
	if given != E2BKey {
		return nil, &v1.Error{Code: v1.CodeUnauthorized, Message: "unknown key"}
	}
	return k.admit(r.Context())
}

// AdmitHolder implements e2b.Access.
func (k *keys) AdmitHolder(ctx context.Context, _ session.Info) (context.Context, error) {
	return k.admit(ctx)
}

// Machines is our own server with the API of E2B, over gVisor. Services of other protocols are built on it.
type Machines struct {
	keys
	Manager *session.Manager
	handler *e2b.Handler
}

// GVisor returns the backend of the services' sandboxes.
func GVisor(t *testing.T) *gvisor.Backend {
	t.Helper()
	testneed.Sandboxes(t)
	b, err := gvisor.New(gvisor.Options{
		DataDir: shared, CacheDir: filepath.Join(shared, "cache"), Engine: engine.Path, Guest: Guest.Path,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// NewMachines returns the server.
func NewMachines(t *testing.T) *Machines {
	t.Helper()
	s := &Machines{}
	var err error
	s.Manager, err = session.New(t.Context(), session.Options{
		Backends: []sandbox.Backend{GVisor(t)}, DataDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler), NoPool: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.handler = e2b.New(t.Context(), e2b.Options{
		Manager: s.Manager, Access: s, Secret: []byte("secret"), MaxUpload: 1 << 30,
		Spec:      v1.Spec{Limits: v1.Limits{Memory: 1 << 30, Processes: 1024}},
		CheckSpec: func(v1.Spec) error { return nil },
		ServePort: func(w http.ResponseWriter, _ *http.Request, _ *session.Session, _ uint16) {
			w.WriteHeader(http.StatusNotImplemented)
		},
	})
	t.Cleanup(func() {
		s.handler.Close()
		if err := s.Manager.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// ServeHTTP implements http.Handler.
func (s *Machines) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// Revoke revokes the key, or makes it valid again.
func (s *Machines) Revoke(revoked bool) { s.revoked.Store(revoked) }

// Revoked reports whether the key is revoked.
func (s *Machines) Revoked() bool { return s.revoked.Load() }

// Running returns the IDs of the sandboxes.
func (s *Machines) Running(t *testing.T) (ids []string) {
	t.Helper()
	for i, err := range s.Manager.List(context.WithoutCancel(t.Context()), session.ListOptions{Tenant: "*"}) {
		if err != nil {
			t.Fatal(err)
		}
		if i.State.Live() {
			ids = append(ids, i.Key.Name)
		}
	}
	return ids
}

// Forget ends all sandboxes, as a service does that loses them.
func (s *Machines) Forget(t *testing.T) {
	t.Helper()
	for i, err := range s.Manager.List(t.Context(), session.ListOptions{Tenant: "*"}) {
		if err != nil {
			t.Fatal(err)
		}
		ses, err := s.Manager.Get(t.Context(), i.Key)
		if err != nil {
			t.Fatal(err)
		}
		if err := ses.End(t.Context(), "the service loses it"); err != nil {
			t.Fatal(err)
		}
	}
}

// Faults of a service.
type Faults struct {
	// Status is how the service answers to a request for a sandbox; 0: it makes one.
	Status int
	// Lost is the number of answers about new sandboxes that the caller does not get.
	Lost int64
	// Half stores the first half of each uploaded file.
	Half bool
}

// Service is a service that a test plays.
type Service interface {
	// Address is the address for a backend's options.
	Address() string
	SetFaults(f Faults)
	Revoke(revoked bool)
	Forget(t *testing.T)
	Running(t *testing.T) []string
	// Creates and Uploads are numbers of requests, Lost that of sandboxes whose answer was lost.
	Creates() int64
	Uploads() int64
	Lost() int64
}

// Web is a service over HTTP.
type Web struct {
	*Machines
	Server *httptest.Server

	// IsCreate and IsUpload recognize requests.
	IsCreate, IsUpload func(*http.Request) bool
	// Message is the answer of a service that refuses a request. It has the key, as hostile services may do.
	Message string

	faults           atomic.Pointer[Faults]
	creates, uploads atomic.Int64
	lost             atomic.Int64
}

var _ Service = (*Web)(nil)

// Serve starts the service with a handler.
func (w *Web) Serve(t *testing.T, h http.Handler) {
	w.faults.Store(&Faults{})
	w.Server = httptest.NewServer(w.faulty(h))
	t.Cleanup(func() {
		w.Server.CloseClientConnections()
		w.Server.Close()
	})
}

// Address implements Service.
func (w *Web) Address() string { return w.Server.URL }

// SetFaults implements Service.
func (w *Web) SetFaults(f Faults) { w.faults.Store(&f) }

// Creates implements Service.
func (w *Web) Creates() int64 { return w.creates.Load() }

// Uploads implements Service.
func (w *Web) Uploads() int64 { return w.uploads.Load() }

// Lost implements Service.
func (w *Web) Lost() int64 { return w.lost.Load() }

func (w *Web) faulty(h http.Handler) http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		f := w.faults.Load()
		switch {
		case w.IsCreate(r):
			w.creates.Add(1)
			if f.Status != 0 {
				out.WriteHeader(f.Status)
				_, _ = io.WriteString(out, w.Message)
				return
			}
			if w.lost.Load() < f.Lost {
				answer := httptest.NewRecorder()
				h.ServeHTTP(answer, r)
				if answer.Code == http.StatusCreated {
					w.lost.Add(1)
				}
				panic(http.ErrAbortHandler) // the caller gets no answer
			}
		case w.IsUpload(r):
			w.uploads.Add(1)
			if f.Half {
				r.Body = &half{ReadCloser: r.Body, size: r.ContentLength}
			}
		}
		h.ServeHTTP(out, r)
	})
}

// half replaces the second half of an upload with zeros, but for its end, which is that of the form around a file.
type half struct {
	io.ReadCloser
	at, size int64
}

// Read implements io.Reader.
func (h *half) Read(b []byte) (int, error) {
	n, err := h.ReadCloser.Read(b)
	const end = 4 << 10
	for i := range b[:n] {
		if at := h.at + int64(i); at > h.size/2 && at < h.size-end {
			b[i] = 0
		}
	}
	h.at += int64(n)
	return n, err
}
