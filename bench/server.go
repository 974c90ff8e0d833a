//go:build linux

package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"gvisor.dev/gvisor/pkg/cleanup"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/gvisor"
	"github.com/recluse-dev/recluse/session"
)

// serverEnv is the environment variable that makes this program the server of a directory. It is used to have a server
// process that can be killed.
const serverEnv = "RECLUSE_BENCH_SERVER"

// manager returns a session manager on the shared backend, with its own store. It has no pool, so that only requested
// sandboxes are counted.
func (b *bench) manager(ctx context.Context) *session.Manager {
	return newManager(ctx, b.backend, must(os.MkdirTemp(b.dir, "manager-")), nil)
}

// newManager returns a manager. If st is nil, the manager opens its own store in dir.
func newManager(ctx context.Context, backend sandbox.Backend, dir string, st store.Store) *session.Manager {
	return must(session.New(ctx, session.Options{
		Backends: []sandbox.Backend{backend},
		DataDir:  dir,
		Store:    st,
		NoPool:   true,
		Logger:   slog.New(slog.DiscardHandler),
	}))
}

// served is a server in this program, on loopback and on a socket.
type served struct {
	store       store.Store
	manager     *session.Manager
	tcp, socket *client.Client

	server *server.Server
	stop   context.CancelFunc
	ended  chan error
}

// serve starts a server on a new manager.
func (b *bench) serve(ctx context.Context) *served {
	data := must(os.MkdirTemp(b.dir, "manager-"))
	st := must(store.OpenSQLite(ctx, data))
	s := &served{store: st, ended: make(chan error, 2)}
	ctx, s.stop = context.WithCancel(ctx)
	cu := cleanup.Make(func() {
		s.stop()
		_ = st.Close()
	})
	defer cu.Clean()
	m := newManager(ctx, b.backend, data, st)
	cu.Add(func() { _ = m.Close() })
	s.manager = m
	s.server = must(server.New(ctx, server.Options{Manager: m, Store: st, Logger: slog.New(slog.DiscardHandler)}))
	dir := must(os.MkdirTemp(b.dir, "socket-"))
	unix := must(server.ListenUnix(filepath.Join(dir, "recluse.sock")))
	tcp := must(net.Listen("tcp", "127.0.0.1:0"))
	for _, ln := range []net.Listener{unix, tcp} {
		go func() { s.ended <- s.server.Serve(ctx, ln) }()
	}
	s.socket = must(client.New(client.Options{Socket: unix.Addr().String()}))
	key := must(s.socket.CreateKey(ctx, v1.NewAPIKey{Name: "bench", Tenant: session.DefaultTenant, Scope: "execute"}))
	s.tcp = must(client.New(client.Options{URL: "http://" + tcp.Addr().String(), Key: key.Secret}))
	cu.Release()
	return s
}

// close stops the server and ends every session.
func (s *served) close() error {
	s.tcp.Close()
	s.socket.Close()
	s.stop()
	err := errors.Join(<-s.ended, <-s.ended, s.manager.Close())
	s.server.Wait()
	return errors.Join(err, s.store.Close())
}

// process is a server in its own process.
type process struct {
	dir string
	cmd *exec.Cmd
}

// launch starts a server for the sessions in a directory, without waiting for it. The directory of sandboxes is the
// shared one.
func (b *bench) launch(ctx context.Context, dir string) *process {
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), serverEnv+"="+b.dir+":"+dir)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	check(cmd.Start())
	return &process{dir: dir, cmd: cmd}
}

// client returns a client of the server. Its calls wait until the server listens.
func (p *process) client() *client.Client {
	return must(client.New(client.Options{Socket: filepath.Join(p.dir, "recluse.sock")}))
}

// kill kills the server with SIGKILL. Its sessions continue.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it was killed
}

// end stops the server and ends its sessions.
func (p *process) end() error {
	return errors.Join(p.cmd.Process.Signal(syscall.SIGTERM), p.cmd.Wait())
}

// serverMain is the main function of such a server. Unlike in the real server, SIGTERM ends the sessions, so that
// nothing is left.
func serverMain(dirs string) {
	base, dir, ok := strings.Cut(dirs, ":")
	checkf(ok, "invalid %s %q", serverEnv, dirs)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	backend := must(
		gvisor.New(gvisor.Options{DataDir: filepath.Join(base, "data"), CacheDir: filepath.Join(base, "cache")}),
	)
	st := must(store.OpenSQLite(ctx, dir))
	defer closing(st.Close)
	m := newManager(ctx, backend, dir, st)
	defer closing(m.Close)
	s := must(server.New(ctx, server.Options{Manager: m, Store: st, Logger: slog.New(slog.DiscardHandler)}))
	ln := must(server.ListenUnix(filepath.Join(dir, "recluse.sock")))
	check(s.Serve(ctx, ln))
}
