//go:build linux

package gvisor

import (
	"context"
	"errors"
	"maps"
	"path/filepath"

	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

var (
	_ backend.Pauser  = (*Backend)(nil)
	_ backend.Labeler = (*Backend)(nil)
	_ backend.Sharer  = (*Backend)(nil)
)

// sharedFiles is the directory of a sandbox, or of a snapshot, whose files are shown inside as sandbox.SharedDir.
const sharedFiles = "shared"

// Pause implements backend.Pauser.
func (b *Backend) Pause(ctx context.Context, id string) error {
	e, err := b.driverOf(id, "pause")
	if err != nil {
		return err
	}
	if st, err := e.state(id); err == nil && st.Status == statusPaused {
		return nil
	}
	if err := e.pause(ctx, id); err != nil {
		return &sandbox.Error{Code: sandbox.CodeInternal, Op: "pause", Message: "the engine could not pause it", Err: errors.Join(err, resumePaused(ctx, e, id))}
	}
	return nil
}

// Resume implements backend.Pauser.
func (b *Backend) Resume(ctx context.Context, id string) error {
	e, err := b.driverOf(id, "resume")
	if err != nil {
		return err
	}
	if err := resumePaused(ctx, e, id); err != nil {
		return &sandbox.Error{Code: sandbox.CodeInternal, Op: "resume", Message: "the engine could not resume it", Err: err}
	}
	return nil
}

// driverOf gives the engine of a sandbox.
func (b *Backend) driverOf(id, op string) (*engine, error) {
	r, err := b.load(id)
	if err != nil {
		return nil, err
	}
	eng, err := b.engineOf(r.Engine, op)
	if err != nil {
		return nil, err
	}
	return b.driver(eng.Path, r.Cgroup), nil
}

// Label implements backend.Labeler.
func (b *Backend) Label(_ context.Context, id string, labels map[string]string) error {
	r, err := b.load(id)
	if err != nil {
		return err
	}
	r.Spec.Labels = maps.Clone(labels)
	if err := b.sandboxes.Save(id, r); err != nil {
		return startError(err)
	}
	return nil
}

// Share implements backend.Sharer.
func (b *Backend) Share(ctx context.Context, id, file, name string) error {
	if _, err := b.load(id); err != nil {
		return err
	}
	return b.shared(id).Share(ctx, file, name)
}

// shared are the files of the host that a sandbox shows.
func (b *Backend) shared(id string) backendkit.SharedFiles {
	return backendkit.SharedFiles{Dir: b.sandboxes.Path(id, sharedFiles)}
}

// sharedOf are those of the snapshot with a checkpoint; "" for none.
func sharedOf(checkpoint string) (s backendkit.SharedFiles) {
	if checkpoint != "" {
		s.Dir = filepath.Join(filepath.Dir(checkpoint), sharedFiles)
	}
	return s
}
