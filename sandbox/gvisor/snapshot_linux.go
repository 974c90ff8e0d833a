//go:build linux

package gvisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/backendkit"
	programs "github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/filelock"
	"github.com/recluse-dev/recluse/internal/guest/host"
	"github.com/recluse-dev/recluse/internal/guest/wire"
	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// snapshotFormat is incremented when older snapshots can no longer be read.
const snapshotFormat = 2

// manifest describes a snapshot. It is stored beside the files of the engine.
type manifest struct {
	backendkit.Manifest
	Record record     `json:"record"` // of the sandbox that the snapshot was taken from
	Held   []heldFile `json:"held"`
}

// heldFile is a host file that processes in the snapshot have open or mapped. The snapshot does not contain its
// content, and the engine does not compare it. If the file has changed, a restored process would run code that it has
// never loaded.
type heldFile struct {
	Path  string `json:"path"`
	Size  int64  `json:"size"`
	Mtime int64  `json:"mtime"`
	Ino   uint64 `json:"ino"`
	Mode  uint32 `json:"mode"`
}

const (
	checkpointDir = "checkpoint"

	// goferFile in the directory of a checkpoint makes the engine write or read it by a process of its own, which copies
	// a large disk into diskFile as a whole (cmd/recluse-engine, checkpoint.go).
	goferFile = "gcs_opts.json"
	diskFile  = "disk.img"
)

// Snapshot implements sandbox.Backend.
func (b *Backend) Snapshot(ctx context.Context, id string, opts sandbox.SnapshotOptions) (*sandbox.Snapshot, error) {
	r, err := b.load(id)
	if err != nil {
		return nil, err
	}
	r.Spec = backendkit.SnapshotSpec(r.Spec, opts)
	snap := sandbox.Snapshot{
		ID:      "p" + ids.Hex(8),
		Backend: Name,
		Parent:  id,
		Created: time.Now().UTC(),
		Spec:    r.Spec,
		Labels:  opts.Labels,
		Engine:  r.Engine,
		Guest:   r.Guest,
	}
	eng, err := b.engineOf(r.Engine, "snapshot")
	if err != nil {
		return nil, err
	}
	e := b.driver(eng.Path, r.Cgroup)
	if opts.Stop {
		// Work that the sandbox does between the checkpoint and its end would be lost silently, so it is paused first.
		// The engine can also end the sandbox with the checkpoint, but then it does so even if the checkpoint fails. A
		// paused sandbox is resumed if there is no snapshot.
		if err := e.pause(ctx, id); err != nil {
			return nil, errors.Join(backendkit.SnapshotError(err), resumePaused(ctx, e, id))
		}
	}
	// The guest has listed the held files a moment ago. A program that runs meanwhile may load another file before the
	// checkpoint stops it. That file is not in the list, and a later change of it is not noticed. A second list after
	// the checkpoint would not help, because the guest has continued by then.
	m := &manifest{
		Manifest: backendkit.Manifest{Format: snapshotFormat, Snapshot: snap},
		Record:   *r,
		Held:     b.fingerprint(r, opts.Held),
	}
	if err := b.save(ctx, m, b.snaps.Path(snap.ID)); err != nil {
		if opts.Stop {
			err = errors.Join(err, resumePaused(ctx, e, id))
		}
		return nil, err
	}
	snap = m.Snapshot
	if opts.Stop {
		// The snapshot is complete. It is returned even if the sandbox could not be removed completely.
		return &snap, b.Stop(ctx, id)
	}
	return &snap, nil
}

// resumePaused resumes a sandbox if it is paused, even if ctx is cancelled.
func resumePaused(ctx context.Context, e *engine, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), engineCleanup)
	defer cancel()
	if st, err := e.state(id); err != nil || st.Status != statusPaused {
		return nil // the sandbox has ended, or was never paused
	}
	return e.resume(ctx, id)
}

// save writes a checkpoint and its manifest into dir. The directory gets its name when it is complete.
func (b *Backend) save(ctx context.Context, m *manifest, dir string) error {
	eng, err := b.engineOf(m.Record.Engine, "snapshot")
	if err != nil {
		return err
	}
	return b.snaps.Save(dir, m, func(image string) error {
		if m.Record.Writable {
			if err := os.WriteFile(filepath.Join(image, goferFile), []byte("{}"), 0o600); err != nil {
				return err
			}
		}
		b.saving.Store(m.Record.ID, &saving{file: filepath.Join(image, diskFile)})
		defer b.saving.Delete(m.Record.ID)
		// The sandbox keeps running in any case. It is ended only when the snapshot is complete.
		if err := b.driver(eng.Path, m.Record.Cgroup).checkpoint(ctx, m.Record.ID, image, true); err != nil {
			return err
		}
		if _, err := os.Stat(filepath.Join(image, diskFile)); errors.Is(err, os.ErrNotExist) {
			_ = os.Remove(filepath.Join(image, goferFile)) // the disk is small and part of the pages
		}
		// The files are linked while the sandbox runs, so a file that is shared after the checkpoint is also in the
		// snapshot, although programs in its memory do not know it.
		return sharedOf(image).Create(b.shared(m.Record.ID))
	})
}

// saving is a snapshot that is being written.
type saving struct {
	file  string // the copy of the disk, once the engine makes it
	once  sync.Once
	total int64 // bytes on the disk, found at the first question
}

var _ backend.Saver = (*Backend)(nil)

// Saving implements backend.Saver.
func (b *Backend) Saving(id string) (done, total int64) {
	v, ok := b.saving.Load(id)
	if !ok {
		return 0, 0
	}
	s, _ := v.(*saving)
	info, err := os.Stat(s.file)
	if err != nil {
		return 0, 0 // not begun, or the disk is small
	}
	s.once.Do(func() { s.total = b.diskBytes()[id] })
	return min(backendkit.Allocated(info), s.total), s.total
}

// fingerprint returns the present state of the held files that are host files.
func (b *Backend) fingerprint(r *record, held []string) []heldFile {
	var out []heldFile
	for _, inside := range held {
		path, ok := hostPath(r, inside)
		if !ok || r.inVolume(inside) {
			continue
		}
		if f, err := statHeld(path); err == nil {
			out = append(out, f)
		}
	}
	return slices.CompactFunc(out, func(a, b heldFile) bool { return a.Path == b.Path })
}

// hostPath returns the path on the host of a file inside. It reports false for files that are not on a host directory,
// such as those in a tmpfs. The guest's program is not included either: its path contains its hash, so it cannot
// change.
func hostPath(r *record, inside string) (string, bool) {
	best, found := bind{}, false
	binds := slices.Clone(r.Binds)
	for _, m := range r.Spec.Mounts {
		binds = append(binds, bind{Source: m.Host, Target: m.Path, Writable: m.Writable})
	}
	for _, b := range binds {
		if (inside == b.Target || strings.HasPrefix(inside, b.Target+"/")) && len(b.Target) > len(best.Target) {
			best, found = b, true
		}
	}
	if !found {
		return "", false
	}
	return filepath.Join(best.Source, strings.TrimPrefix(inside, best.Target)), true
}

func statHeld(path string) (heldFile, error) {
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return heldFile{}, err
	}
	f := heldFile{Path: path, Ino: st.Ino, Mode: st.Mode}
	if st.Mode&syscall.S_IFMT == syscall.S_IFREG { // changes of directories and devices do no harm
		f.Size, f.Mtime = st.Size, st.Mtim.Nano()
	}
	return f, nil
}

// Restore implements sandbox.Backend.
func (b *Backend) Restore(
	ctx context.Context,
	snap *sandbox.Snapshot,
	opts sandbox.RestoreOptions,
) (sandbox.Machine, error) {
	if snap == nil || !backendkit.ValidID(snap.ID) {
		return nil, &v1.Error{Code: v1.CodeNotFound, Op: "restore", Message: "snapshot not found"}
	}
	dir := b.snaps.Path(snap.ID)
	m, err := b.readManifest(dir, snap.ID)
	if err != nil {
		return nil, err
	}
	spec := backendkit.RestoredSpec(m.Record.Spec, opts)
	if opts.Copy {
		b.volumes.ReadOnlyCopies(spec.Volumes)
	}
	return b.restore(ctx, m, dir, spec)
}

// restore makes a sandbox from a manifest that readManifest has checked.
func (b *Backend) restore(ctx context.Context, m *manifest, dir string, spec sandbox.Spec) (*machine, error) {
	eng, err := b.engineOf(m.Record.Engine, "restore")
	if err != nil {
		return nil, err
	}
	guest, err := b.guestOf(m.Record.Guest, "restore")
	if err != nil {
		return nil, err
	}
	r := m.Record
	r.Record = r.Record.Copy(idPrefix)
	r.Spec = spec
	return b.launch(ctx, &r, eng, guest, filepath.Join(dir, checkpointDir))
}

// readManifest reads the manifest of a snapshot and checks the files of the snapshot.
func (b *Backend) readManifest(dir, id string) (*manifest, error) {
	m := &manifest{}
	if err := b.snaps.Read(dir, id, m); err != nil {
		return nil, err
	}
	for _, h := range m.Held {
		if now, err := statHeld(h.Path); err != nil || now != h {
			return nil, &v1.Error{
				Code:    v1.CodeSnapshotStale,
				Op:      "restore",
				Message: "snapshot " + id + " is stale: " + h.Path + ", which its programs use, has changed",
				Remedy:  "take a new snapshot",
				Err:     err,
			}
		}
	}
	return m, nil
}

// engineOf returns the engine that a sandbox or snapshot was made with.
func (b *Backend) engineOf(hash, op string) (programs.Program, error) {
	return b.program(b.engine, hash, programs.EngineName, op)
}

// guestOf returns the guest that a sandbox or snapshot was made with.
func (b *Backend) guestOf(hash, op string) (programs.Program, error) {
	return b.program(b.guest, hash, programs.GuestName, op)
}

// program returns the program with a hash: ours, or an earlier version from the cache.
func (b *Backend) program(ours programs.Program, hash, name, op string) (programs.Program, error) {
	if hash == ours.Hash {
		return ours, nil
	}
	p, err := b.store.ByHash(hash, name)
	if err != nil {
		err = &v1.Error{
			Code:    v1.CodeSnapshotVersion,
			Op:      op,
			Message: "it was made with another " + name + " (" + hash + "), which is no longer in the cache",
			Remedy:  "install the version of recluse that made it",
			Err:     err,
		}
	}
	return p, err
}

// DeleteSnapshot implements sandbox.Backend.
func (b *Backend) DeleteSnapshot(_ context.Context, id string) error { return b.snaps.Delete(id) }

// Snapshots implements sandbox.Backend.
func (b *Backend) Snapshots(context.Context) ([]*sandbox.Snapshot, error) { return b.snaps.List() }

// A template is a snapshot of a sandbox that has done nothing but start its guest and an interpreter. Restoring it
// takes about as long as booting an empty sandbox, and everything in it is warm. There is one template for each
// combination of properties that a restored sandbox cannot change: root file system, limits, engine, guest. The first
// sandbox that needs a template makes it. It is made again when a host file that it holds has changed.

// codeNoTemplate is the code of errors that mean: there is no template, boot the sandbox instead.
const codeNoTemplate v1.Code = "no_template"

// templateWait is how long making a template may take.
const templateWait = 60 * time.Second

// startFromTemplate restores a sandbox from its template. If there is no template, it makes it first.
func (b *Backend) startFromTemplate(ctx context.Context, p *plan) (*machine, error) {
	dir := filepath.Join(b.dir, "templates", b.templateKey(p))
	touch(dir) // before it is read, so that no sweep removes it meanwhile
	m, err := b.readManifest(dir, "template")
	if err != nil {
		if m, err = b.makeTemplate(ctx, p, dir); err != nil {
			return nil, err
		}
	}
	return b.restore(ctx, m, dir, p.spec)
}

// templateKey returns the name of the template for a plan.
func (b *Backend) templateKey(p *plan) string {
	_, limitErr := b.limits()
	config := guestConfig(backendkit.Record{Spec: p.spec}, p) // without a token, because each template has its own
	key, err := json.Marshal([]any{
		snapshotFormat, b.engine.Hash, b.guest.Hash, p.dir, p.binds, p.spec.Limits, limitErr == nil, b.asUser(), config,
	})
	if err != nil {
		panic(err) // these types can always be encoded
	}
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:16])
}

// makeTemplate boots a sandbox, warms it and saves its snapshot as the template. One process makes a template at a
// time; others wait for it.
func (b *Backend) makeTemplate(ctx context.Context, p *plan, dir string) (*manifest, error) {
	noTemplate := func(err error) error {
		return &v1.Error{Code: codeNoTemplate, Op: "make template", Err: err}
	}
	lock, err := filelock.Acquire(ctx, filepath.Join(b.dir, "templates", ".lock"))
	if err != nil {
		return nil, noTemplate(err)
	}
	defer lock.Release()
	if m, err := b.readManifest(dir, "template"); err == nil {
		return m, nil // another process has made it meanwhile
	}
	if b.opts.Progress != nil {
		const what = "making a warm template, once"
		b.opts.Progress(what, 0, 0)
		defer b.opts.Progress(what, 1, 1)
	}
	if err := os.RemoveAll(dir); err != nil {
		return nil, noTemplate(err)
	}
	ctx, cancel := context.WithTimeout(ctx, templateWait)
	defer cancel()
	neutral := *p // without everything that a restored sandbox can change
	neutral.spec.Env, neutral.spec.Labels = nil, nil
	neutral.spec.Hostname, neutral.spec.Shell, neutral.spec.Persist = "", "", false
	mach, err := b.boot(ctx, &neutral)
	if err != nil {
		return nil, err
	}
	defer func() { _ = b.Stop(context.WithoutCancel(ctx), mach.ID()) }() // nothing in the sandbox is needed any more
	c, err := host.Attach(ctx, mach.Stream(), host.Options{
		Token:    mach.Token(),
		Identity: &wire.Identity{Generation: mach.Generation()},
	})
	if err != nil {
		if cause := mach.Cause(); cause != nil {
			return nil, cause
		}
		return nil, &v1.Error{
			Code:    v1.CodeGuestLost,
			Op:      "start sandbox",
			Message: "the guest does not answer",
			Err:     err,
		}
	}
	defer c.Close()
	// A root without Python is not an error: there is less to warm. What a command needs is not warmed, because each
	// process in a template makes a restore slower by about the time it takes to start it (12 ms were measured).
	if err := c.Warm(ctx, true, false); err != nil {
		if e, ok := errors.AsType[*host.Error](err); !ok || e.Code != "no_python" {
			return nil, noTemplate(err)
		}
	}
	held, err := c.Quiesce(ctx)
	if err != nil {
		return nil, noTemplate(err)
	}
	m := &manifest{
		Manifest: backendkit.Manifest{
			Format: snapshotFormat,
			Snapshot: sandbox.Snapshot{
				ID:      "template",
				Backend: Name,
				Created: time.Now().UTC(),
				Spec:    neutral.spec,
				Engine:  b.engine.Hash,
				Guest:   b.guest.Hash,
			},
		},
		Record: *mach.record,
		Held:   b.fingerprint(mach.record, held),
	}
	if err := b.save(ctx, m, dir); err != nil {
		return nil, noTemplate(fmt.Errorf("save: %w", err))
	}
	return m, nil
}
