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

// patience is for what must come, on a machine with much else to do.
const patience = time.Minute

// shared is where all tests' backends keep programs, roots and templates: making them takes seconds.
var shared string

// Main is TestMain for packages that use a Bench. Nothing may be left behind: no sandbox and no goroutine.
func Main(m *testing.M) int {
	if Doomed() {
		return serveDoomed()
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
	return gvisor.New(gvisor.Options{DataDir: shared, CacheDir: filepath.Join(shared, "cache"), Engine: engine.Path, Guest: guest.Path})
}

// Bench is a server that can be stopped and started again. It listens on loopback and on a UNIX socket.
type Bench struct {
	Store   store.Store
	Manager *session.Manager
	Server  *server.Server
	URL     string // of the TCP listener
	Socket  string
	Trusted *client.Client // over the socket

	t       testing.TB
	dir     string
	Backend sandbox.Backend
	opts    server.Options
	tcp     string // address, kept over restarts
	stop    context.CancelFunc
	served  chan error
	stopped bool
	warm    bool // one sandbox is kept ready
}

// New starts a server. Its sessions are ended with the test.
func New(t testing.TB, opts server.Options) *Bench {
	t.Helper()
	return newBench(t, opts, gvisorBackend(t), false)
}

// NewLocal starts a server whose sandboxes are processes of this machine, for tests in which the backend plays no part.
func NewLocal(t testing.TB, opts server.Options) *Bench {
	t.Helper()
	testneed.Sandboxes(t)
	guest, err := testbin.Guest()
	if err != nil {
		t.Fatal(err)
	}
	return newBench(t, opts, local.New(local.Options{Dir: t.TempDir(), GuestPath: guest.Path}), false)
}

// NewWarm starts a server that has one sandbox ready.
func NewWarm(t testing.TB, opts server.Options) *Bench {
	t.Helper()
	k := newBench(t, opts, gvisorBackend(t), true)
	for end := time.Now().Add(patience); k.Manager.PoolStats()[k.Backend.Name()].Ready == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no sandbox is ready")
		}
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
	k.in(t.TempDir())
	if k.opts.Logger == nil {
		k.opts.Logger = slog.New(slog.DiscardHandler)
	}
	k.opts.Logger = slog.New(statusCheck{k.opts.Logger.Handler(), t})
	if k.opts.Drain == 0 {
		k.opts.Drain = 5 * time.Second
	}
	k.Start()
	var err error
	if k.Trusted, err = client.New(client.Options{Socket: k.Socket, RetryTime: patience}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.close)
	return k
}

// in sets the data directory.
func (k *Bench) in(dir string) { k.dir, k.Socket = dir, filepath.Join(dir, "run", "recluse.sock") }

// Start makes manager and server.
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
	for end := time.Now().Add(patience); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		tcp, err = net.Listen("tcp", k.tcp) // while we were stopped somebody may call from this port
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

// Stop drains the server and gives its sessions up, as on SIGTERM.
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
	if k.stopped { // its sessions are to be ended all the same
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

// Murder kills the process of a session's sandbox, and waits until that is noticed.
func (k *Bench) Murder(s *session.Session) {
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
	for end := time.Now().Add(patience); s.Info().Sandbox == id && s.Info().State != v1.StateLost; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			k.t.Fatal("nobody noticed that the sandbox has gone")
		}
	}
}

// Client speaks to the server over TCP with a key.
func (k *Bench) Client(key string) *client.Client {
	k.t.Helper()
	c, err := client.New(client.Options{URL: k.URL, Key: key})
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(c.Close)
	return c
}

// Key makes a key.
func (k *Bench) Key(tenant, scope string) string {
	k.t.Helper()
	key, err := k.Trusted.CreateKey(context.Background(), v1.NewAPIKey{Name: tenant + " " + scope, Tenant: tenant, Scope: scope})
	if err != nil {
		k.t.Fatal(err)
	}
	return key.Secret
}
