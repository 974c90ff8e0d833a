package vm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/filelock"
	"github.com/recluse-dev/recluse/internal/guest/host"
	"github.com/recluse-dev/recluse/internal/guest/wire"
	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/sandbox"
)

// snapshotFormat is incremented when older snapshots can no longer be read.
const snapshotFormat = 2

// manifest describes a snapshot. The state of the machine is beside it: the memory, and the writable disk. The other
// disks are not part of it, because nothing can write to them.
type manifest struct {
	backendkit.Manifest
	Record record `json:"record"` // of the sandbox that the snapshot was taken from
}

// stateDir is the directory with the files that the monitor has saved, in that of a snapshot.
const stateDir = "state"

// Snapshot implements sandbox.Backend.
func (b *Backend) Snapshot(ctx context.Context, id string, opts sandbox.SnapshotOptions) (*sandbox.Snapshot, error) {
	r, err := b.load(id)
	if err != nil {
		return nil, err
	}
	m := newManifest(r, sandbox.Snapshot{
		ID: "p" + ids.Hex(8), Parent: id, Spec: r.Spec, Labels: opts.Labels,
	})
	if err := b.save(ctx, m, b.snaps.Path(m.Snapshot.ID), opts.Stop); err != nil {
		return nil, err
	}
	if opts.Stop {
		// The snapshot is complete. It is returned even if the sandbox could not be removed completely.
		return &m.Snapshot, b.Stop(ctx, id)
	}
	return &m.Snapshot, nil
}

func newManifest(r *record, s sandbox.Snapshot) *manifest {
	s.Backend, s.Created, s.Engine, s.Guest = Name, time.Now().UTC(), r.Hash, r.Guest
	return &manifest{Manifest: backendkit.Manifest{Format: snapshotFormat, Snapshot: s}, Record: *r}
}

// save writes the state of a machine and its manifest into dir, which gets its name when it is complete. The machine
// stays paused if stop is set and the snapshot was written.
func (b *Backend) save(ctx context.Context, m *manifest, dir string, stop bool) error {
	mon, err := b.monitorOf(&m.Record)
	if err != nil {
		return err
	}
	hw := b.hardware(&m.Record)
	resume := func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resumeWait)
		defer cancel()
		return mon.resume(ctx, hw)
	}
	err = b.snaps.Save(dir, m, func(state string) error {
		err := mon.pause(ctx, hw)
		if err == nil {
			err = mon.save(ctx, hw, state)
		}
		if err == nil {
			err = hw.saveDisk(filepath.Join(state, diskFile))
		}
		if err != nil || !stop {
			err = errors.Join(err, resume())
		}
		return err
	})
	if err != nil && stop {
		err = errors.Join(err, backendkit.SnapshotError(resume())) // a machine that runs stays as it is
	}
	return err
}

// Restore implements sandbox.Backend.
func (b *Backend) Restore(
	ctx context.Context, snap *sandbox.Snapshot, opts sandbox.RestoreOptions,
) (sandbox.Machine, error) {
	if snap == nil || !backendkit.ValidID(snap.ID) {
		return nil, &v1.Error{Code: v1.CodeNotFound, Op: "restore", Message: "snapshot not found"}
	}
	b.sweeper.Once(ctx)
	m, dir := &manifest{}, b.snaps.Path(snap.ID)
	if err := b.snaps.Read(dir, snap.ID, m); err != nil {
		return nil, err
	}
	mach, err := b.restore(ctx, m, dir, backendkit.RestoredSpec(m.Record.Spec, opts))
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, cancelled("restore", errors.Join(ctx.Err(), err))
	case err != nil:
		return nil, err
	}
	return mach, nil
}

// restore makes a sandbox from a snapshot whose files have been checked.
func (b *Backend) restore(ctx context.Context, m *manifest, dir string, spec sandbox.Spec) (*machine, error) {
	kvm, err := b.accelerated()
	if err != nil {
		return nil, err
	}
	mon, err := b.monitorOf(&m.Record)
	if err != nil {
		return nil, err
	}
	version, err := b.version(ctx, mon)
	if err == nil && (version != m.Record.Version || kvm != m.Record.KVM) {
		err = fmt.Errorf("it was taken with %s %s and KVM %v", m.Record.Monitor, m.Record.Version, m.Record.KVM)
	}
	hw := b.hardware(&m.Record)
	for _, path := range []string{hw.kernel, hw.initramfs, hw.root} {
		if _, missing := os.Stat(path); err == nil && missing != nil {
			err = missing
		}
	}
	if err != nil {
		return nil, &v1.Error{
			Code: v1.CodeSnapshotVersion, Op: "restore", Message: "the snapshot was taken with another machine",
			Remedy: "take a new snapshot", Err: err,
		}
	}
	r := m.Record
	r.Record = r.Copy(idPrefix)
	r.Spec, r.Process = spec, backendkit.Process{}
	return b.launch(ctx, &r, mon, filepath.Join(dir, stateDir))
}

// DeleteSnapshot implements sandbox.Backend.
func (b *Backend) DeleteSnapshot(_ context.Context, id string) error { return b.snaps.Delete(id) }

// Snapshots implements sandbox.Backend.
func (b *Backend) Snapshots(context.Context) ([]*sandbox.Snapshot, error) { return b.snaps.List() }

// A template is a snapshot of a sandbox that has done nothing but start its guest and an interpreter. Restoring it is
// much faster than a boot. There is one template for each combination of properties that a restored sandbox cannot
// change. The first sandbox that needs a template makes it.

// resumeWait is how long a machine may take to continue after a failed snapshot.
const resumeWait = 5 * time.Second

// templateWait is how long making a template may take.
const templateWait = 3 * time.Minute

// errNoTemplate means that there is no template: boot the machine instead.
var errNoTemplate = errors.New("no template")

// startFromTemplate restores a sandbox from its template. If there is no template, it makes it first.
func (b *Backend) startFromTemplate(ctx context.Context, r *record, mon monitor) (*machine, error) {
	dir := filepath.Join(b.dir, "templates", templateKey(r))
	touch(dir) // before it is read, so that no sweep removes it meanwhile
	m := &manifest{}
	if err := b.snaps.Read(dir, "template", m); err != nil {
		if err := b.makeTemplate(ctx, r, mon, dir); err != nil {
			return nil, err
		}
		m = &manifest{}
		if err := b.snaps.Read(dir, "template", m); err != nil {
			return nil, errors.Join(errNoTemplate, err)
		}
	}
	return b.restore(ctx, m, dir, r.Spec)
}

// templateKey returns the name of the template for a sandbox.
func templateKey(r *record) string {
	config := r.Config
	config.Token = "" // each template has its own
	key, err := json.Marshal([]any{snapshotFormat, r.Hash, r.Spec.Limits, config})
	if err != nil {
		panic(err) // these types can always be encoded
	}
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:16])
}

// makeTemplate boots a sandbox, warms it and saves it as the template. One process makes a template at a time; others
// wait for it.
func (b *Backend) makeTemplate(ctx context.Context, of *record, mon monitor, dir string) error {
	no := func(err error) error { return errors.Join(errNoTemplate, err) }
	lock, err := filelock.Acquire(ctx, filepath.Join(b.dir, "templates", ".lock"))
	if err != nil {
		return no(err)
	}
	defer lock.Release()
	if b.snaps.Read(dir, "template", &manifest{}) == nil {
		return nil // another process has made it meanwhile
	}
	if b.opts.Progress != nil {
		const what = "making a warm template, once"
		b.opts.Progress(what, 0, 0)
		defer b.opts.Progress(what, 1, 1)
	}
	if err := os.RemoveAll(dir); err != nil {
		return no(err)
	}
	ctx, cancel := context.WithTimeout(ctx, templateWait)
	defer cancel()
	r := *of
	neutral := r.Spec // without everything that a restored sandbox can change
	neutral.Env, neutral.Labels, neutral.Hostname, neutral.Shell, neutral.Persist = nil, nil, "", "", false
	r.Record = backendkit.NewRecord(idPrefix, neutral, r.Guest)
	r.Config.Token = r.Token
	mach, err := b.launch(ctx, &r, mon, "")
	if err != nil {
		return err
	}
	defer func() { _ = b.Stop(context.WithoutCancel(ctx), mach.ID()) }() // a sweep tries again
	c, err := host.Attach(ctx, mach.Stream(), host.Options{
		Token: mach.Token(), Identity: &wire.Identity{Generation: mach.Generation(), UnixNanos: time.Now().UnixNano()},
	})
	if err != nil {
		if cause := mach.Cause(); cause != nil {
			return cause
		}
		return startError(fmt.Errorf("the guest does not answer: %w", err))
	}
	defer c.Close()
	if err := c.Warm(ctx, true, false); err != nil {
		if e, ok := errors.AsType[*host.Error](err); !ok || e.Code != "no_python" {
			return no(err)
		}
	}
	if _, err := c.Quiesce(ctx); err != nil {
		return no(err)
	}
	m := newManifest(&r, sandbox.Snapshot{ID: "template", Spec: neutral})
	if err := b.save(ctx, m, dir, true); err != nil {
		return no(err)
	}
	return nil
}
