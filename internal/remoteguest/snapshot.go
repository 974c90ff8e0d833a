package remoteguest

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// saved is the record of a snapshot.
type saved struct {
	sandbox.Snapshot
	Token  string `json:"token"`  // of the guest in its memory
	Remote string `json:"remote"` // ID at the service; empty while it is taken
	Number uint64 `json:"number"` // of the last connection to the guest
	// Owner takes the snapshot, while Remote is empty.
	Owner backendkit.Process `json:"owner"`
}

const noSnapshots = "use a backend with snapshots, such as gvisor"

func (b *Backend) savedPath(id string) string {
	return filepath.Join(b.opts.Dir, "snapshots", id+".json")
}

func (b *Backend) loadSaved(id string) (s saved, err error) {
	err = fs.ErrNotExist
	if backendkit.ValidID(id) {
		err = atomicfile.ReadJSON(b.savedPath(id), &s)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return s, &v1.Error{Code: v1.CodeNotFound, Op: "find snapshot", Message: "this instance has no such snapshot"}
	}
	return s, err
}

// Snapshot implements sandbox.Backend.
func (b *Backend) Snapshot(ctx context.Context, id string, o sandbox.SnapshotOptions) (*sandbox.Snapshot, error) {
	const op = "snapshot"
	p, ok := b.p.(Snapshotter)
	if !ok {
		return nil, backend.NotSupported(b.Name(), op, noSnapshots)
	}
	var st state
	if err := b.store.Load(id, &st); err != nil {
		return nil, err
	}
	s := saved{Token: st.Token, Number: st.Number, Snapshot: sandbox.Snapshot{
		ID: "s-" + ids.Hex(6), Backend: b.Name(), Parent: id, Created: time.Now().UTC(),
		Spec: backendkit.SnapshotSpec(st.Spec, o), Labels: maps.Clone(o.Labels), Guest: st.Guest,
	}, Owner: backendkit.Self()}
	if err := b.keep(ctx, p, st.Ref, &s); err != nil {
		return nil, failed(op, "the service did not take the snapshot", err)
	}
	if o.Stop {
		return &s.Snapshot, b.Stop(ctx, id)
	}
	return &s.Snapshot, nil
}

// keep takes a snapshot. Its record exists before it does, so that a kill leaves nothing at the service.
func (b *Backend) keep(ctx context.Context, p Snapshotter, ref Ref, s *saved) error {
	err := os.MkdirAll(filepath.Dir(b.savedPath(s.ID)), 0o700)
	if err == nil {
		err = atomicfile.WriteJSON(b.savedPath(s.ID), s)
	}
	if err != nil {
		return err
	}
	if err := b.ledger.Keep(s.ID, b.opts.SnapshotPrice); err != nil {
		return errors.Join(err, os.Remove(b.savedPath(s.ID)))
	}
	if s.Remote, err = p.Snapshot(ctx, ref, b.snapshotName(s.ID)); err == nil {
		err = atomicfile.WriteJSON(b.savedPath(s.ID), s)
	}
	if err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
		defer cancel()
		if e := b.dropUnfinished(clean, p, s); e != nil {
			err = errors.Join(err, e) // the next sweep tries again
		}
	}
	return err
}

// snapshotName returns the name of a snapshot at the service.
func (b *Backend) snapshotName(id string) string { return "recluse-" + b.own.Name + "-" + id }

// dropUnfinished removes a snapshot whose ID at the service may be unknown.
func (b *Backend) dropUnfinished(ctx context.Context, p Snapshotter, s *saved) error {
	if s.Remote != "" {
		return b.drop(ctx, p, s)
	}
	all, err := p.Snapshots(ctx)
	if err != nil {
		return err
	}
	for _, r := range all {
		if slices.Contains(r.Names, b.snapshotName(s.ID)) {
			s.Remote = r.ID
		}
	}
	return b.drop(ctx, p, s)
}

// drop removes a snapshot with its record.
func (b *Backend) drop(ctx context.Context, p Snapshotter, s *saved) error {
	if s.Remote != "" {
		if err := p.DeleteSnapshot(ctx, s.Remote); err != nil {
			return err
		}
	}
	return errors.Join(b.ledger.Drop(s.ID), os.Remove(b.savedPath(s.ID)))
}

// sweepSnapshots removes the snapshots that dead programs did not finish, and those of this instance at the service
// that have no record. It returns their names.
func (b *Backend) sweepSnapshots(ctx context.Context) (removed []string, err error) {
	p, ok := b.p.(Snapshotter)
	if !ok {
		return nil, nil
	}
	records, err := b.savedAll()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, s := range records {
		if s.Remote == "" && s.Owner.Dead() {
			errs = append(errs, b.dropUnfinished(ctx, p, &s))
		}
	}
	all, err := p.Snapshots(ctx)
	if err != nil {
		return nil, errors.Join(append(errs, err)...)
	}
	for _, r := range all {
		for _, name := range r.Names {
			id, mine := strings.CutPrefix(name, b.snapshotName(""))
			if !mine || !backendkit.ValidID(id) {
				continue
			}
			if _, err := os.Stat(b.savedPath(id)); !errors.Is(err, fs.ErrNotExist) { // after the list: records come first
				continue
			}
			err := p.DeleteSnapshot(ctx, r.ID)
			if errs = append(errs, err, b.ledger.Drop(id)); err == nil {
				removed = append(removed, name)
			}
		}
	}
	return removed, errors.Join(errs...)
}

// DiskUse implements backend.DiskUser: nothing of it is on this machine.
func (b *Backend) DiskUse(context.Context) ([]v1.DiskUse, error) { return nil, nil }

// Reclaim implements backend.DiskUser. It removes what killed programs left at the service.
func (b *Backend) Reclaim(ctx context.Context) (out []v1.DiskUse, err error) {
	if b.own.Unused() {
		return nil, nil
	}
	removed, err := b.sweepSnapshots(ctx)
	for _, name := range removed {
		out = append(out, v1.DiskUse{Kind: v1.DiskSnapshot, Name: name, Backend: b.Name()})
	}
	return out, err
}

// Restore implements sandbox.Backend.
func (b *Backend) Restore(
	ctx context.Context, snap *sandbox.Snapshot, o sandbox.RestoreOptions,
) (sandbox.Machine, error) {
	if _, ok := b.p.(Snapshotter); !ok {
		return nil, backend.NotSupported(b.Name(), "restore", noSnapshots)
	}
	if snap == nil {
		return nil, &v1.Error{Code: v1.CodeNotFound, Op: "restore", Message: "no snapshot is given"}
	}
	s, err := b.loadSaved(snap.ID)
	if err != nil {
		return nil, err
	}
	spec := backendkit.RestoredSpec(s.Spec, o)
	if err := b.p.Check(spec); err != nil {
		return nil, err
	}
	r := backendkit.Record{Spec: spec, Token: s.Token, Guest: s.Guest}
	st := state{Record: r.Copy("c-"), From: s.Remote, Number: s.Number}
	return b.start(ctx, st, bundle.Program{})
}

// DeleteSnapshot implements sandbox.Backend.
func (b *Backend) DeleteSnapshot(ctx context.Context, id string) error {
	p, ok := b.p.(Snapshotter)
	s, err := b.loadSaved(id)
	if v1.CodeOf(err) == v1.CodeNotFound || !ok {
		return nil
	}
	if err != nil {
		return err
	}
	if err := b.dropUnfinished(ctx, p, &s); err != nil {
		return failed("delete snapshot", "the service did not remove the snapshot", err)
	}
	return nil
}

// Snapshots implements sandbox.Backend.
func (b *Backend) Snapshots(context.Context) ([]*sandbox.Snapshot, error) {
	all, err := b.savedAll()
	var out []*sandbox.Snapshot
	for _, s := range all {
		if s.Remote != "" {
			out = append(out, &s.Snapshot)
		}
	}
	slices.SortFunc(out, func(x, y *sandbox.Snapshot) int { return x.Created.Compare(y.Created) })
	return out, err
}

// savedAll returns the records of all snapshots.
func (b *Backend) savedAll() (out []saved, err error) {
	entries, err := os.ReadDir(filepath.Join(b.opts.Dir, "snapshots"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), ".json"); ok {
			if s, err := b.loadSaved(id); err == nil {
				out = append(out, s)
			}
		}
	}
	return out, nil
}
