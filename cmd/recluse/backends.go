package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"

	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/config"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
	"github.com/recluse-dev/recluse/sandbox/docker"
	"github.com/recluse-dev/recluse/sandbox/e2b"
	"github.com/recluse-dev/recluse/sandbox/gvisor"
	"github.com/recluse-dev/recluse/sandbox/local"
	"github.com/recluse-dev/recluse/sandbox/modal"
	"github.com/recluse-dev/recluse/sandbox/prime"
	"github.com/recluse-dev/recluse/sandbox/vm"
)

// backends returns all backends, including those that cannot work here: the report of a selection names them all.
func (a *app) backends(ctx context.Context) []sandbox.Backend {
	return []sandbox.Backend{
		usable(gvisor.Name, a.gvisor),
		usable(vm.Name, a.vm),
		usable(docker.Name, a.docker),
		usable(e2b.Name, a.e2b),
		usable(modal.Name, a.modal),
		usable(prime.Name, a.prime),
		usable(local.Name, func() (*local.Backend, error) {
			cfg, err := a.config()
			if err != nil {
				return nil, err
			}
			o := local.Options{UnlimitedDisk: cfg.Backend.UnlimitedDisk}
			if runtime.GOOS != "linux" {
				return local.New(o), nil
			}
			guest, err := bundle.Guest(ctx)
			o.GuestPath = guest.Path
			return local.New(o), err
		}),
	}
}

// usable returns the backend that make returns. If make fails, it returns a backend that reports why it cannot be used.
func usable[B sandbox.Backend](name string, make func() (B, error)) sandbox.Backend {
	b, err := make()
	if err != nil {
		return backend.Unavailable(name, err)
	}
	return b
}

func (a *app) gvisor() (*gvisor.Backend, error) {
	cfg, err := a.config()
	if err != nil {
		return nil, err
	}
	network, err := a.networkOptions(cfg)
	if err != nil {
		return nil, err
	}
	return gvisor.New(gvisor.Options{
		Progress:      a.progress(),
		AllowMounts:   cfg.Backend.AllowMounts,
		UnlimitedDisk: cfg.Backend.UnlimitedDisk,
		Network:       network,
	})
}

// vm returns the vm backend as it is configured. It is closed when the program ends.
func (a *app) vm() (*vm.Backend, error) {
	cfg, err := a.config()
	if err != nil {
		return nil, err
	}
	o := cfg.VM.Options()
	o.Progress = a.progress()
	if o.Network, err = a.networkOptions(cfg); err != nil {
		return nil, err
	}
	b, err := vm.New(o)
	if err != nil {
		return nil, err
	}
	a.atEnd = append(a.atEnd, b.Close)
	return b, nil
}

// e2b returns the e2b backend as it is configured. It is closed when the program ends.
func (a *app) e2b() (*e2b.Backend, error) {
	cfg, err := a.config()
	if err != nil {
		return nil, err
	}
	b, err := e2b.New(cfg.E2B.Options())
	if err != nil {
		return nil, err
	}
	a.atEnd = append(a.atEnd, b.Close)
	return b, nil
}

// modal returns the modal backend as it is configured. It is closed when the program ends.
func (a *app) modal() (*modal.Backend, error) {
	cfg, err := a.config()
	if err != nil {
		return nil, err
	}
	b, err := modal.New(cfg.Modal.Options())
	if err != nil {
		return nil, err
	}
	a.atEnd = append(a.atEnd, b.Close)
	return b, nil
}

// prime returns the prime backend as it is configured. It is closed when the program ends.
func (a *app) prime() (*prime.Backend, error) {
	cfg, err := a.config()
	if err != nil {
		return nil, err
	}
	b, err := prime.New(cfg.Prime.Options())
	if err != nil {
		return nil, err
	}
	a.atEnd = append(a.atEnd, b.Close)
	return b, nil
}

// networkOptions returns the operator's part of the network. No sandbox reaches the API of this program, even if the
// operator has excepted an address of this host.
func (a *app) networkOptions(cfg *config.Config) (sandbox.NetworkOptions, error) {
	o, err := cfg.Network.Options()
	o.Listeners = a.listening.all
	return o, err
}

// listeningAddrs are the TCP addresses on which this program serves.
type listeningAddrs struct {
	mu    sync.Mutex
	addrs []netip.AddrPort // guarded by mu
}

func (l *listeningAddrs) add(a net.Addr) {
	if t, ok := a.(*net.TCPAddr); ok {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.addrs = append(l.addrs, t.AddrPort())
	}
}

func (l *listeningAddrs) all() []netip.AddrPort {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.addrs)
}

// docker returns the docker backend as it is configured. It is closed when the program ends.
func (a *app) docker() (*docker.Backend, error) {
	cfg, err := a.config()
	if err != nil {
		return nil, err
	}
	o, err := cfg.Docker.Options()
	if err != nil {
		return nil, err
	}
	o.Progress, o.AllowMounts = a.progress(), cfg.Backend.AllowMounts
	if o.Egress, err = a.networkOptions(cfg); err != nil {
		return nil, err
	}
	b, err := docker.New(o)
	if err != nil {
		return nil, err
	}
	a.atEnd = append(a.atEnd, b.Close)
	return b, nil
}

// backend selects a backend for a sandbox that is made at once.
func (a *app) backend(ctx context.Context, f *backendFlags) (sandbox.Backend, error) {
	req, err := f.requirements(a)
	if err != nil {
		return nil, err
	}
	req.SkipTrial = true
	b, _, err := backend.Select(ctx, a.backends(ctx), req)
	return b, err
}

// open selects a backend and makes a sandbox. The caller must close the sandbox.
func (a *app) open(ctx context.Context, f *backendFlags, spec sandbox.Spec) (*sandbox.Sandbox, error) {
	b, err := a.backend(ctx, f)
	if err != nil {
		return nil, cause(ctx, err)
	}
	if usual := a.cfg.Network.Usual(); usual != nil && !spec.Network.IsSet() {
		spec.Network = *usual
	}
	s, err := sandbox.Open(ctx, b, spec)
	if err != nil {
		return nil, cause(ctx, err)
	}
	a.signals.guard(s)
	for _, limit := range unkept(spec.Limits, b.Capabilities(ctx)) {
		a.notice("warning: the %s backend does not guarantee a limit on %s here; recluse doctor shows why", b.Name(), limit)
	}
	return s, nil
}

// unkept returns the names of the limits that are set in l and that a backend does not guarantee.
func unkept(l sandbox.Limits, c sandbox.Capabilities) []string {
	var out []string
	for _, limit := range []struct {
		name      string
		set, kept bool
	}{
		{"memory", l.Memory != 0, c.MemoryLimit},
		{"cpus", l.CPUs != 0, c.CPULimit},
		{"processes", l.Processes != 0, c.ProcessLimit},
		{"disk", l.Disk != 0, c.DiskLimit},
		{"open files", l.OpenFiles != 0, c.OpenFileLimit},
	} {
		if limit.set && !limit.kept {
			out = append(out, limit.name)
		}
	}
	return out
}

// cause returns the cause of ctx if ctx has ended, because err then only follows from it, else err. An exit stays: its
// verb has reported the cause.
func cause(ctx context.Context, err error) error {
	_, reported := errors.AsType[exit](err)
	why := context.Cause(ctx)
	if why == nil || reported {
		return err
	}
	if _, printed := errors.AsType[errorWithResult](err); printed {
		return errorWithResult{why}
	}
	return why
}

// close ends a sandbox, and prints the error if that fails.
func (a *app) close(s *sandbox.Sandbox) {
	if err := s.Close(); err != nil {
		a.printError(err) // the result has been printed
	}
}
