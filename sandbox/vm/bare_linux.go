package vm

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/sandbox"
)

// Bare starts the machine of a sandbox without a sandbox: from its template, or by a boot if the spec is Cold. It ends
// the machine at once, and returns how long the monitor took until the machine ran and, after a boot, until the guest
// had opened the stream. It is the baseline of figures.
func (b *Backend) Bare(ctx context.Context, spec sandbox.Spec) (took time.Duration, err error) {
	r, mon, err := b.plan(ctx, spec)
	if err != nil {
		return 0, err
	}
	from := ""
	if !spec.Cold {
		m, dir := &manifest{}, filepath.Join(b.dir, "templates", templateKey(r))
		if err := b.snaps.Read(dir, "template", m); err != nil {
			return 0, err
		}
		spec := r.Spec
		*r = m.Record
		r.Record, from = r.Copy(idPrefix), filepath.Join(dir, stateDir)
		r.Spec, r.Process = spec, backendkit.Process{}
	}
	defer func() { err = errors.Join(err, b.Stop(context.WithoutCancel(ctx), r.ID)) }()
	if err := b.makeDirs(ctx, r, from); err != nil {
		return 0, startError(err)
	}
	if err := b.store.Save(r.ID, r); err != nil {
		return 0, startError(err)
	}
	hw := b.hardware(r)
	hw.from = from
	began := time.Now()
	err = mon.start(ctx, hw, func(pid int) error {
		r.Process = backendkit.ProcessOf(pid)
		return b.store.Save(r.ID, r)
	})
	return time.Since(began), startError(err)
}
