//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/gvisor"
	"github.com/recluse-dev/recluse/session"
)

// serverEnv makes this program the server of a directory, so that there is one to be killed.
const serverEnv = "RECLUSE_BENCH_SERVER"

// manager makes a session manager on the shared backend, with a store of its own. Sandboxes are made on demand, so that whatever is
// counted was asked for.
func (b *bench) manager(ctx context.Context) (*session.Manager, error) {
	dir, err := os.MkdirTemp(b.dir, "manager-")
	if err != nil {
		return nil, err
	}
	return newManager(ctx, b.backend, dir, nil)
}

// newManager makes a manager; with a nil store it opens its own in dir.
func newManager(ctx context.Context, backend sandbox.Backend, dir string, st store.Store) (*session.Manager, error) {
	return session.New(ctx, session.Options{Backends: []sandbox.Backend{backend}, DataDir: dir, Store: st, NoPool: true, Logger: slog.New(slog.DiscardHandler)})
}

// served is a server within this program, on loopback and on a socket.
type served struct {
	store       store.Store
	manager     *session.Manager
	tcp, socket *client.Client

	server *server.Server
	stop   context.CancelFunc
	ended  chan error
}

// serve starts a server on a new manager.
func (b *bench) serve(ctx context.Context) (_ *served, err error) {
	data, err := os.MkdirTemp(b.dir, "manager-")
	if err != nil {
		return nil, err
	}
	st, err := store.OpenSQLite(ctx, data)
	if err != nil {
		return nil, err
	}
	m, err := newManager(ctx, b.backend, data, st)
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	s := &served{store: st, manager: m, ended: make(chan error, 2)}
	ctx, s.stop = context.WithCancel(ctx)
	defer func() {
		if err != nil {
			s.stop()
			err = errors.Join(err, m.Close(), st.Close())
		}
	}()
	if s.server, err = server.New(ctx, server.Options{Manager: m, Store: st, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(b.dir, "socket-")
	if err != nil {
		return nil, err
	}
	unix, err := server.ListenUnix(filepath.Join(dir, "recluse.sock"))
	if err != nil {
		return nil, err
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, unix.Close())
	}
	for _, ln := range []net.Listener{unix, tcp} {
		go func() { s.ended <- s.server.Serve(ctx, ln) }()
	}
	if s.socket, err = client.New(client.Options{Socket: unix.Addr().String()}); err != nil {
		return nil, err
	}
	key, err := s.socket.CreateKey(ctx, v1.NewAPIKey{Name: "bench", Tenant: session.DefaultTenant, Scope: "execute"})
	if err != nil {
		return nil, err
	}
	s.tcp, err = client.New(client.Options{URL: "http://" + tcp.Addr().String(), Key: key.Secret})
	return s, err
}

// close ends the server and every session.
func (s *served) close() error {
	s.tcp.Close()
	s.socket.Close()
	s.stop()
	err := errors.Join(<-s.ended, <-s.ended, s.manager.Close())
	s.server.Wait()
	return errors.Join(err, s.store.Close())
}

// process is a server in a process of its own.
type process struct {
	dir string
	cmd *exec.Cmd
}

// launch starts a server for the sessions of a directory; it is not waited for. The directory of sandboxes is the shared one.
func (b *bench) launch(ctx context.Context, dir string) (*process, error) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), serverEnv+"="+b.dir+":"+dir)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	return &process{dir: dir, cmd: cmd}, cmd.Start()
}

// client speaks to it, and waits until it listens.
func (p *process) client() (*client.Client, error) {
	return client.New(client.Options{Socket: filepath.Join(p.dir, "recluse.sock")})
}

// kill ends it at once; its sessions go on.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it was killed
}

// end ends it with its sessions.
func (p *process) end() error {
	return errors.Join(p.cmd.Process.Signal(syscall.SIGTERM), p.cmd.Wait())
}

// serverMain is the whole life of such a process. SIGTERM ends its sessions, unlike that of the real server, so that nothing stays.
func serverMain(dirs string) (err error) {
	base, dir, ok := strings.Cut(dirs, ":")
	if !ok {
		return fmt.Errorf("%s is %q", serverEnv, dirs)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	backend, err := gvisor.New(gvisor.Options{DataDir: filepath.Join(base, "data"), CacheDir: filepath.Join(base, "cache")})
	if err != nil {
		return err
	}
	st, err := store.OpenSQLite(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	m, err := newManager(ctx, backend, dir, st)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	s, err := server.New(ctx, server.Options{Manager: m, Store: st, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	ln, err := server.ListenUnix(filepath.Join(dir, "recluse.sock"))
	if err != nil {
		return err
	}
	return s.Serve(ctx, ln)
}
