//go:build linux

// Package servertest runs a real server over real sandboxes, for the tests of server and client.
package servertest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	choose "github.com/recluse-dev/recluse/sandbox/backend"
	"github.com/recluse-dev/recluse/sandbox/gvisor"
	"github.com/recluse-dev/recluse/sandbox/local"
	"github.com/recluse-dev/recluse/sandbox/pool"
	"github.com/recluse-dev/recluse/session"
)

// timeout is how long tests wait for a condition. It is long enough for a busy machine.
const timeout = time.Minute

// shared is the directory in which the backends of all tests keep programs, root file systems and templates, because
// making them takes seconds.
var shared string

// Main is TestMain for packages that use a Bench. It fails if the tests leave sandboxes or goroutines behind.
func Main(m *testing.M) int {
	if IsChild() {
		return serveAsChild()
	}
	var err error
	if shared, err = os.MkdirTemp("", "recluse-server-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(shared) }()
	code := m.Run()
	if b, err := backend(); err == nil {
		left, err := b.List(context.Background())
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
		for _, i := range left {
			fmt.Fprintln(os.Stderr, "left behind:", i.ID, i.Labels)
			_ = b.Stop(context.Background(), i.ID)
			code = max(code, 1)
		}
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func backend() (*gvisor.Backend, error) {
	engine, guest, err := testbin.Programs()
	if err != nil {
		return nil, err
	}
	return gvisor.New(gvisor.Options{
		DataDir:  shared,
		CacheDir: filepath.Join(shared, "cache"),
		Engine:   engine.Path,
		Guest:    guest.Path,
	})
}

// Bench is a server that can be stopped and started again. It listens on loopback and on a UNIX socket.
type Bench struct {
	Store   store.Store
	Manager *session.Manager
	Server  *server.Server
	URL     string // URL of the TCP listener
	Socket  string
	Trusted *client.Client // client over the socket

	t       testing.TB
	dir     string
	Backend sandbox.Backend
	opts    server.Options
	tcp     string // address of the TCP listener, the same after a restart
	stop    context.CancelFunc
	served  chan error
	stopped bool
	warm    bool // the pool keeps one sandbox ready
}

// New starts a server. Its sessions end with the test.
func New(t testing.TB, opts server.Options) *Bench {
	t.Helper()
	return newBench(t, opts, gvisorBackend(t), false)
}

// NewLocal starts a server with the backend local, for tests that do not depend on the backend.
func NewLocal(t testing.TB, opts server.Options) *Bench {
	t.Helper()
	testneed.Sandboxes(t)
	guest, err := testbin.Guest()
	if err != nil {
		t.Fatal(err)
	}
	return newBench(t, opts, local.New(local.Options{Dir: t.TempDir(), GuestPath: guest.Path}), false)
}

// NewWarm starts a server, and waits until its pool has one sandbox ready.
func NewWarm(t testing.TB, opts server.Options) *Bench {
	t.Helper()
	k := newBench(t, opts, gvisorBackend(t), true)
	deadline := time.Now().Add(timeout)
	for k.Manager.PoolStats()[k.Backend.Name()].Ready == 0 {
		if time.Now().After(deadline) {
			t.Fatal("no sandbox is ready")
		}
		time.Sleep(10 * time.Millisecond)
	}
	return k
}

func gvisorBackend(t testing.TB) sandbox.Backend {
	t.Helper()
	testneed.Sandboxes(t)
	b, err := backend()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func newBench(t testing.TB, opts server.Options, b sandbox.Backend, warm bool) *Bench {
	t.Helper()
	testneed.Parallel(t)
	k := &Bench{t: t, Backend: b, opts: opts, tcp: "127.0.0.1:0", warm: warm}
	k.setDir(t.TempDir())
	if k.opts.Logger == nil {
		k.opts.Logger = slog.New(slog.DiscardHandler)
	}
	k.opts.Logger = slog.New(statusCheck{k.opts.Logger.Handler(), t})
	if k.opts.Drain == 0 {
		k.opts.Drain = 5 * time.Second
	}
	k.Start()
	var err error
	if k.Trusted, err = client.New(client.Options{Socket: k.Socket, RetryTime: timeout}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.close)
	return k
}

// setDir sets the data directory.
func (k *Bench) setDir(dir string) { k.dir, k.Socket = dir, filepath.Join(dir, "run", "recluse.sock") }

// Start opens the store, and starts manager and server.
func (k *Bench) Start() {
	k.t.Helper()
	k.stopped = false
	st, err := store.OpenSQLite(context.Background(), k.dir)
	if err != nil {
		k.t.Fatal(err)
	}
	k.Store, k.opts.Store = st, st
	o := session.Options{
		Backends: []sandbox.Backend{k.Backend},
		Require:  choose.Requirements{AllowNone: true},
		DataDir:  k.dir,
		Store:    st,
		NoPool:   !k.warm,
		Logger:   k.opts.Logger,
	}
	if k.warm {
		o.Pool, o.Warm = pool.Options{Min: 1, Target: 1, Max: 1}, []sandbox.Spec{{}}
	}
	m, err := session.New(context.Background(), o)
	if err != nil {
		k.t.Fatal(err)
	}
	k.Manager, k.opts.Manager = m, m
	if k.Server, err = server.New(context.Background(), k.opts); err != nil {
		k.t.Fatal(err)
	}
	unix, err := server.ListenUnix(k.Socket)
	if err != nil {
		k.t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", k.tcp)
	// While the server was stopped, another program may have got its port for an outgoing connection.
	for deadline := time.Now().Add(timeout); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(deadline); {
		time.Sleep(50 * time.Millisecond)
		tcp, err = net.Listen("tcp", k.tcp)
	}
	if err != nil {
		k.t.Fatal(err)
	}
	k.tcp, k.URL = tcp.Addr().String(), "http://"+tcp.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	k.stop, k.served = stop, make(chan error, 2)
	srv := k.Server
	for _, ln := range []net.Listener{unix, tcp} {
		go func() { k.served <- srv.Serve(ctx, ln) }()
	}
}

// Stop drains the server and detaches from its sessions, as on SIGTERM.
func (k *Bench) Stop() {
	k.t.Helper()
	k.stop()
	err := errors.Join(<-k.served, <-k.served)
	err = errors.Join(err, k.Manager.Detach(context.Background()))
	k.Server.Wait()
	if err := errors.Join(err, k.Store.Close()); err != nil {
		k.t.Error(err)
	}
	k.stopped = true
}

func (k *Bench) close() {
	k.Trusted.Close()
	if k.stopped { // its sessions must be ended, too
		k.Start()
	}
	k.stop()
	err := errors.Join(<-k.served, <-k.served)
	err = errors.Join(err, k.Manager.Close())
	k.Server.Wait()
	if err := errors.Join(err, k.Store.Close()); err != nil {
		k.t.Error(err)
	}
}

// KillSandbox kills the process of a session's sandbox, and waits until the manager has noticed it.
func (k *Bench) KillSandbox(s *session.Session) {
	k.t.Helper()
	id := s.Info().Sandbox
	list, err := k.Backend.List(context.Background())
	if err != nil {
		k.t.Fatal(err)
	}
	for _, i := range list {
		if i.ID != id {
			continue
		}
		if err := syscall.Kill(i.PID, syscall.SIGKILL); err != nil {
			k.t.Fatal(err)
		}
	}
	deadline := time.Now().Add(timeout)
	for s.Info().Sandbox == id && s.Info().State != v1.StateLost {
		if time.Now().After(deadline) {
			k.t.Fatal("the manager did not notice that the sandbox was killed")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Client returns a client that uses the server over TCP with a key.
func (k *Bench) Client(key string) *client.Client {
	k.t.Helper()
	c, err := client.New(client.Options{URL: k.URL, Key: key})
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(c.Close)
	return c
}

// Key creates a key and returns its secret.
func (k *Bench) Key(tenant, scope string) string {
	k.t.Helper()
	key, err := k.Trusted.CreateKey(context.Background(), v1.NewAPIKey{
		Name:   tenant + " " + scope,
		Tenant: tenant,
		Scope:  scope,
	})
	if err != nil {
		k.t.Fatal(err)
	}
	return key.Secret
}
