package main

import (
	"context"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// backends gives every backend there is, those that cannot work here included: the report of a selection names them all.
func (a *app) backends(ctx context.Context) []sandbox.Backend {
	var list []sandbox.Backend
	for _, b := range builtin {
		made, err := b.make(ctx, a)
		if err != nil {
			made = backend.Unavailable(b.name, err)
		}
		list = append(list, made)
	}
	return list
}

// backend chooses a backend for a sandbox that is made at once.
func (a *app) backend(ctx context.Context, f *backendFlags) (sandbox.Backend, error) {
	req, err := f.requirements(a)
	if err != nil {
		return nil, err
	}
	req.Soon = true
	b, _, err := backend.Select(ctx, a.backends(ctx), req)
	return b, err
}

// open chooses a backend and makes a sandbox. The caller must close it.
func (a *app) open(ctx context.Context, w *watch, f *backendFlags, spec sandbox.Spec) (*sandbox.Sandbox, error) {
	b, err := a.backend(ctx, f)
	if err != nil {
		return nil, cause(ctx, err)
	}
	s, err := sandbox.Open(ctx, b, spec)
	if err != nil {
		return nil, cause(ctx, err)
	}
	w.guard(s)
	for _, what := range unkept(spec.Limits, b.Capabilities(ctx)) {
		a.say("warning: the %s backend does not guarantee a limit on %s here; recluse doctor says why", b.Name(), what)
	}
	return s, nil
}

// unkept names the limits that were asked for and that a backend does not promise to keep.
func unkept(l sandbox.Limits, c sandbox.Capabilities) []string {
	var out []string
	for _, limit := range []struct {
		name        string
		asked, kept bool
	}{
		{"memory", l.Memory != 0, c.MemoryLimit},
		{"cpus", l.CPUs != 0, c.CPULimit},
		{"processes", l.Processes != 0, c.ProcessLimit},
		{"disk", l.Disk != 0, c.DiskLimit},
		{"open files", l.OpenFiles != 0, c.OpenFileLimit},
	} {
		if limit.asked && !limit.kept {
			out = append(out, limit.name)
		}
	}
	return out
}

// cause prefers the reason for which ctx ended over what that led to.
func cause(ctx context.Context, err error) error {
	if why := context.Cause(ctx); why != nil {
		return why
	}
	return err
}

// close ends a sandbox and tells if that failed.
func (a *app) close(s *sandbox.Sandbox) {
	if err := s.Close(); err != nil {
		a.tell(err) // the result has been printed
	}
}
