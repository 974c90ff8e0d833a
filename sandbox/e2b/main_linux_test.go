package e2b

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/e2b"
	"github.com/recluse-dev/recluse/internal/remoteguest"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/gvisor"
	"github.com/recluse-dev/recluse/sandbox/sandboxtest"
	"github.com/recluse-dev/recluse/session"
)

// shared is the directory of the service's sandboxes, root file systems and templates.
var (
	shared        string
	engine, guest bundle.Program
)

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) (code int) {
	var err error
	engine, guest, err = testbin.Programs()
	if err == nil {
		shared, err = os.MkdirTemp("", "recluse-e2b-")
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

// key is a key of the service, in E2B's form.
const key = "e2b_0123456789abcdef0123456789abcdef01234567"

// keys admits callers with the key, unless it was revoked.
type keys struct{ revoked atomic.Bool }

func (k *keys) admit(ctx context.Context) (context.Context, error) {
	if k.revoked.Load() {
		return nil, &v1.Error{Code: v1.CodeUnauthorized, Message: "the key was revoked"}
	}
	return session.WithActor(ctx, session.Actor{Name: "test", Tenant: session.DefaultTenant}), nil
}

func (k *keys) AdmitKey(r *http.Request, given, _ string) (context.Context, error) {
	if given != key {
		return nil, &v1.Error{Code: v1.CodeUnauthorized, Message: "unknown key"}
	}
	return k.admit(r.Context())
}

func (k *keys) AdmitHolder(ctx context.Context, _ session.Info) (context.Context, error) {
	return k.admit(ctx)
}

// service is our own server with the API of E2B, over gVisor.
type service struct {
	keys
	manager *session.Manager
	server  *httptest.Server
	// before sees each request. If it returns true, it has answered.
	before atomic.Pointer[func(w http.ResponseWriter, r *http.Request) bool]
	calls  sync.Map // path of a request: *atomic.Int64
}

func newService(t *testing.T) *service {
	t.Helper()
	testneed.Sandboxes(t)
	b, err := gvisor.New(gvisor.Options{
		DataDir: shared, CacheDir: filepath.Join(shared, "cache"), Engine: engine.Path, Guest: guest.Path,
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &service{}
	s.manager, err = session.New(t.Context(), session.Options{
		Backends: []sandbox.Backend{b}, DataDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler), NoPool: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	h := e2b.New(t.Context(), e2b.Options{
		Manager: s.manager, Access: s, Secret: []byte("secret"), MaxUpload: 1 << 30,
		Spec:      v1.Spec{Limits: v1.Limits{Memory: 1 << 30, Processes: 1024}},
		CheckSpec: func(v1.Spec) error { return nil },
		ServePort: func(w http.ResponseWriter, _ *http.Request, _ *session.Session, _ uint16) {
			w.WriteHeader(http.StatusNotImplemented)
		},
	})
	s.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := s.calls.LoadOrStore(r.URL.Path, &atomic.Int64{})
		n.(*atomic.Int64).Add(1) //nolint:forcetypeassert // nothing else is stored
		if f := s.before.Load(); f != nil && (*f)(w, r) {
			return
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		h.Close()
		s.server.CloseClientConnections()
		s.server.Close()
		if err := s.manager.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// on sets what happens before each request.
func (s *service) on(f func(w http.ResponseWriter, r *http.Request) bool) { s.before.Store(&f) }

// count returns the number of requests to a path.
func (s *service) count(path string) int64 {
	n, ok := s.calls.Load(path)
	if !ok {
		return 0
	}
	return n.(*atomic.Int64).Load() //nolint:forcetypeassert // nothing else is stored
}

// running returns the IDs of the service's sandboxes.
func (s *service) running(t *testing.T) (ids []string) {
	t.Helper()
	for i, err := range s.manager.List(context.WithoutCancel(t.Context()), listAll) {
		if err != nil {
			t.Fatal(err)
		}
		if i.State.Live() {
			ids = append(ids, i.Key.Name)
		}
	}
	return ids
}

// backend returns a backend that uses the service at an address.
func (s *service) backend(t *testing.T, at string, change func(*Options)) *Backend {
	t.Helper()
	o := Options{URL: at, Key: key, Remote: remoteguest.Options{Dir: t.TempDir(), Guest: guest}}
	if change != nil {
		change(&o)
	}
	b, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// between returns a random number.
func between(low, high int64) func() int64 {
	return func() int64 { return low + rand.Int64N(high-low) }
}

func run(t *testing.T, sb *sandbox.Sandbox, script string) string {
	t.Helper()
	v, err := sb.Run(t.Context(), sandbox.Command{Shell: script})
	if err != nil || !v.OK() {
		t.Fatalf("%s: %v, %+v", script, err, v)
	}
	return v.Stdout.String()
}

func open(t *testing.T, b *Backend) *sandbox.Sandbox {
	t.Helper()
	sb, err := sandbox.Open(t.Context(), b, sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Error(err)
		}
	})
	return sb
}

// listAll lists the sessions of all tenants.
var listAll = session.ListOptions{Tenant: "*"}
