package session

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// A manager finds its sandboxes by the instance id of its store. When the store is lost, or the data directory gets
// another store, no manager finds them any more, and they would run for ever. So each sandbox also has a label with the
// directory of the store. A survey compares the instance id in the label with that of the store in the directory.

// Survey lists the sandboxes of all servers and programs of this user, and on a container engine those of all users,
// oldest first for each backend. It does not need a manager. A store that was moved is found if it is in dataDir now.
// The error joins the errors of backends that did not answer.
func Survey(ctx context.Context, backends []sandbox.Backend, dataDir string) ([]v1.HostSandbox, error) {
	out := []v1.HostSandbox{}
	var errs []error
	stores := newStores(dataDir)
	for _, b := range backends {
		s, ok := b.(backend.Surveyor)
		if !ok {
			continue
		}
		found, err := askBackend(ctx, b, searchWait, s.Survey)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, f := range found {
			out = append(out, stores.describe(ctx, f))
		}
	}
	return out, errors.Join(errs...)
}

// EndSandbox ends a sandbox that Survey returned, unless a program uses it.
func EndSandbox(ctx context.Context, backends []sandbox.Backend, s v1.HostSandbox) error {
	for _, b := range backends {
		if surveyor, ok := b.(backend.Surveyor); ok && b.Name() == s.Backend {
			return callBackend(ctx, b, stopWait, func(ctx context.Context) error {
				return surveyor.EndUnheld(ctx, s.ID)
			})
		}
	}
	return &v1.Error{
		Code:    v1.CodeNoBackend,
		Op:      "end sandbox",
		Message: fmt.Sprintf("backend %q is not configured", s.Backend),
	}
}

// stores caches which store is in a directory.
type stores struct {
	dataDir string
	seen    map[string]peeked
}

// peeked is the result of store.Peek.
type peeked struct {
	instance string
	used     bool // a program has the store open
	err      error
}

func newStores(dataDir string) *stores { return &stores{dataDir: dataDir, seen: map[string]peeked{}} }

// peek returns the result of store.Peek for a directory.
func (s *stores) peek(ctx context.Context, dir string) peeked {
	p, ok := s.seen[dir]
	if !ok {
		p.instance, p.used, p.err = store.Peek(ctx, dir)
		s.seen[dir] = p
	}
	return p
}

// describe describes a sandbox, and whether it is still needed.
func (s *stores) describe(ctx context.Context, f backend.Surveyed) v1.HostSandbox {
	return v1.HostSandbox{
		ID:       f.ID,
		Backend:  f.Backend,
		Session:  f.Labels[labelSession],
		Instance: f.Labels[labelInstance],
		Store:    f.Labels[labelStore],
		Owner:    f.Owner,
		Created:  f.Created,
		Running:  f.Running,
		Use:      s.use(ctx, f),
	}
}

// use reports whether a sandbox is still needed.
func (s *stores) use(ctx context.Context, f backend.Surveyed) v1.SandboxUse {
	instance, dir := f.Labels[labelInstance], f.Labels[labelStore]
	switch {
	case f.Held:
		return v1.SandboxHeld
	case instance == "" && !f.Spec.Persist:
		return v1.SandboxStray // its program has died, and the next sandbox of the backend would end it
	case instance == "" || dir == "":
		return v1.SandboxUnknown
	}
	for _, dir := range []string{dir, s.dataDir} {
		if p := s.peek(ctx, dir); p.err == nil && p.instance == instance {
			if p.used {
				return v1.SandboxHeld
			}
			return v1.SandboxKept
		}
	}
	// Only a directory that exists and no longer has the store proves that the store is lost.
	if p := s.peek(ctx, dir); filepath.IsAbs(dir) && (p.err == nil || errors.Is(p.err, store.ErrRemoved)) {
		return v1.SandboxStray
	}
	return v1.SandboxUnknown
}

// collectForeign ends sandboxes of other managers whose store is lost.
func (m *Manager) collectForeign(ctx context.Context, c *Collected) error {
	all, err := Survey(ctx, m.opts.Backends, m.store.Dir())
	errs := []error{err}
	for _, s := range all {
		if s.Use != v1.SandboxStray || s.Instance == m.instance {
			continue
		}
		if err := EndSandbox(ctx, m.opts.Backends, s); err != nil {
			m.log.WarnContext(ctx, "sandbox whose store is lost could not be ended", "sandbox", s.ID, "error", err)
			errs = append(errs, err)
			continue
		}
		m.log.InfoContext(ctx, "sandbox whose store is lost ended",
			"sandbox", s.ID, "session", s.Session, "store", s.Store)
		c.Strays++
	}
	return errors.Join(errs...)
}
