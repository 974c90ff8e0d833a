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
	}}
	remote, err := p.Snapshot(ctx, st.Ref, "recluse-"+b.own.Name+"-"+s.ID)
	if err != nil {
		return nil, failed(op, "the service did not take the snapshot", err)
	}
	s.Remote = remote
	err = os.MkdirAll(filepath.Dir(b.savedPath(s.ID)), 0o700)
	if err == nil {
		err = atomicfile.WriteJSON(b.savedPath(s.ID), s)
	}
	if err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
		defer cancel()
		return nil, failed(op, "cannot write the record of the snapshot", errors.Join(err, p.DeleteSnapshot(clean, remote)))
	}
	if o.Stop {
		return &s.Snapshot, b.Stop(ctx, id)
	}
	return &s.Snapshot, nil
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
	if err := p.DeleteSnapshot(ctx, s.Remote); err != nil {
		return failed("delete snapshot", "the service did not remove the snapshot", err)
	}
	return os.Remove(b.savedPath(id))
}

// Snapshots implements sandbox.Backend.
func (b *Backend) Snapshots(context.Context) ([]*sandbox.Snapshot, error) {
	entries, err := os.ReadDir(filepath.Join(b.opts.Dir, "snapshots"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []*sandbox.Snapshot
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), ".json"); ok {
			if s, err := b.loadSaved(id); err == nil {
				out = append(out, &s.Snapshot)
			}
		}
	}
	slices.SortFunc(out, func(x, y *sandbox.Snapshot) int { return x.Created.Compare(y.Created) })
	return out, nil
}
