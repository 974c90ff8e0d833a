package main

import (
	"context"
	"slices"
	"strings"

	"github.com/recluse-dev/recluse/sandbox"
)

// backends gives every backend there is, those that cannot work here included: the report of a selection names them all.
func (a *app) backends(ctx context.Context) []sandbox.Backend {
	var list []sandbox.Backend
	for _, b := range builtin {
		made, err := b.make(ctx, a)
		if err != nil {
			made = broken{name: b.name, err: err}
		}
		list = append(list, made)
	}
	return list
}

// open chooses a backend and makes a sandbox. The caller must close it.
func (a *app) open(ctx context.Context, w *watch, c *choice, spec sandbox.Spec) (*sandbox.Sandbox, error) {
	req := c.requirements(a)
	req.Soon = true
	b, _, err := sandbox.Select(ctx, a.backends(ctx), req)
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

// broken is a backend that could not even be made. Selection asks it for its health and passes it over.
type broken struct {
	name string
	err  error
}

// Name is that of the backend it stands for.
func (b broken) Name() string { return b.name }

// Capabilities are none.
func (broken) Capabilities(context.Context) sandbox.Capabilities { return sandbox.Capabilities{} }

// Health says why it could not be made.
func (b broken) Health(context.Context) sandbox.Health {
	f := failureOf(b.err)
	parts := slices.DeleteFunc([]string{f.Op, f.Message, f.Cause}, func(s string) bool { return s == "" })
	return sandbox.Health{Reason: strings.Join(parts, ": "), Remedy: f.Remedy}
}

// List cannot tell what there is.
func (b broken) List(context.Context) ([]sandbox.Info, error) { return nil, b.err }

// Snapshots cannot either.
func (b broken) Snapshots(context.Context) ([]*sandbox.Snapshot, error) { return nil, b.err }

// Start fails for the reason for which there is no backend.
func (b broken) Start(context.Context, sandbox.Spec) (sandbox.Machine, error) { return nil, b.err }

// Attach does, too.
func (b broken) Attach(context.Context, string) (sandbox.Machine, error) { return nil, b.err }

// Stop does, too.
func (b broken) Stop(context.Context, string) error { return b.err }

// Snapshot does, too.
func (b broken) Snapshot(context.Context, string, sandbox.SnapshotOptions) (*sandbox.Snapshot, error) {
	return nil, b.err
}

// Restore does, too.
func (b broken) Restore(context.Context, *sandbox.Snapshot, sandbox.RestoreOptions) (sandbox.Machine, error) {
	return nil, b.err
}

// DeleteSnapshot does, too.
func (b broken) DeleteSnapshot(context.Context, string) error { return b.err }
