package vm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/filelock"
	"github.com/recluse-dev/recluse/internal/guest/host"
	"github.com/recluse-dev/recluse/internal/guest/wire"
	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/sandbox"
)

// snapshotFormat is incremented when older snapshots can no longer be read.
const snapshotFormat = 1

// manifest describes a snapshot. The state of the machine is beside it: the memory, which contains all writable files.
// The disks are not part of it, because nothing can write to them.
type manifest struct {
	Format   int              `json:"format"`
	Snapshot sandbox.Snapshot `json:"snapshot"`
	Record   record           `json:"record"` // of the sandbox that the snapshot was taken from
	CRC      uint32           `json:"crc32c"` // of the state
}

const (
	manifestFile = "manifest.json"
	stateFile    = "state"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (b *Backend) snapshotDir(id string) string { return filepath.Join(b.dir, "snapshots", id) }

// Snapshot implements sandbox.Backend.
func (b *Backend) Snapshot(ctx context.Context, id string, opts sandbox.SnapshotOptions) (*sandbox.Snapshot, error) {
	r, err := b.load(id)
	if err != nil {
		return nil, err
	}
	m := &manifest{
		Format: snapshotFormat,
		Snapshot: sandbox.Snapshot{
			ID: "p" + ids.Hex(8), Backend: Name, Parent: id, Created: time.Now().UTC(), Spec: r.Spec, Labels: opts.Labels,
			Engine: r.Hash, Guest: r.Guest,
		},
		Record: *r,
	}
	if err := b.save(ctx, m, b.snapshotDir(m.Snapshot.ID), opts.Stop); err != nil {
		return nil, err
	}
	if opts.Stop {
		// The snapshot is complete. It is returned even if the sandbox could not be removed completely.
		return &m.Snapshot, b.Stop(ctx, id)
	}
	return &m.Snapshot, nil
}

// save writes the state of a machine and its manifest into dir, which gets its name when it is complete. The machine
// stays paused if stop is set and the snapshot was written.
func (b *Backend) save(ctx context.Context, m *manifest, dir string, stop bool) (err error) {
	mon, err := b.monitorOf(&m.Record)
	if err != nil {
		return err
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), newPrefix)
	if err != nil {
		return snapshotError(err)
	}
	defer func() { _ = os.RemoveAll(temp) }() // already renamed, unless a step failed
	// The lock shows that the maker of the directory lives: the sweep removes directories without a lock.
	lock, err := filelock.TryDir(temp)
	if err != nil {
		return snapshotError(err)
	}
	defer lock.Release()
	state, err := os.OpenFile(filepath.Join(temp, stateFile), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return snapshotError(err)
	}
	defer state.Close()
	own := b.store.Path(m.Record.ID, machineDir)
	resume := func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resumeWait)
		defer cancel()
		return mon.resume(ctx, own)
	}
	err = mon.pause(ctx, own)
	if err == nil {
		err = mon.save(ctx, own, state)
	}
	if err != nil {
		if diskFull(temp) {
			err = errors.Join(syscall.ENOSPC, err)
		}
		return snapshotError(errors.Join(err, resume()))
	}
	if !stop {
		if err := resume(); err != nil {
			return snapshotError(err)
		}
	}
	finish := func() error {
		if m.CRC, m.Snapshot.Size, err = checksum(state); err != nil {
			return err
		}
		if err := state.Sync(); err != nil {
			return err
		}
		if err := atomicfile.WriteJSON(filepath.Join(temp, manifestFile), m); err != nil {
			return err
		}
		return os.Rename(temp, dir)
	}
	if err := finish(); err != nil {
		if stop {
			err = errors.Join(err, resume())
		}
		return snapshotError(err)
	}
	return nil
}

// diskFull reports whether the disk of dir has less than 1 MiB left. The monitor does not report why it failed.
func diskFull(dir string) bool {
	var st syscall.Statfs_t
	return syscall.Statfs(dir, &st) == nil && st.Bavail*uint64(st.Bsize) < 1<<20
}

func snapshotError(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return &v1.Error{Code: v1.CodeCancelled, Op: "snapshot", Message: "cancelled", Err: err}
	}
	e := &v1.Error{Code: v1.CodeInternal, Op: "snapshot", Message: "the snapshot could not be written", Err: err}
	if errors.Is(err, syscall.ENOSPC) {
		e.Code, e.Remedy = v1.CodeDiskFull, "free disk space, or delete snapshots"
		e.Message = "the disk is full; the sandbox keeps running and the incomplete snapshot was removed"
	}
	return e
}

// checksum reads a file from its beginning.
func checksum(f *os.File) (uint32, int64, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return 0, 0, err
	}
	h := crc32.New(castagnoli)
	n, err := io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{f}, make([]byte, 1<<20))
	return h.Sum32(), n, err
}

// Restore implements sandbox.Backend.
func (b *Backend) Restore(
	ctx context.Context, snap *sandbox.Snapshot, opts sandbox.RestoreOptions,
) (sandbox.Machine, error) {
	if snap == nil || !backendkit.ValidID(snap.ID) {
		return nil, &v1.Error{Code: v1.CodeNotFound, Op: "restore", Message: "snapshot not found"}
	}
	b.sweeper.Once(ctx)
	m, state, err := b.openSnapshot(b.snapshotDir(snap.ID), snap.ID)
	if err != nil {
		return nil, err
	}
	defer state.Close()
	mach, err := b.restore(ctx, m, state, backendkit.RestoredSpec(m.Record.Spec, opts))
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, cancelled("restore", errors.Join(ctx.Err(), err))
	case err != nil:
		return nil, err
	}
	return mach, nil
}

// restore makes a sandbox from a snapshot that openSnapshot has checked.
func (b *Backend) restore(ctx context.Context, m *manifest, state *os.File, spec sandbox.Spec) (*machine, error) {
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
		err = fmt.Errorf("it was taken with QEMU %s and KVM %v", m.Record.Version, m.Record.KVM)
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
	return b.launch(ctx, &r, mon, state)
}

// openSnapshot reads the manifest of a snapshot, checks its state, and opens the state at its beginning.
func (b *Backend) openSnapshot(dir, id string) (_ *manifest, _ *os.File, err error) {
	fail := func(code v1.Code, text, remedy string, err error) error {
		return &v1.Error{Code: code, Op: "restore", Message: "snapshot " + id + " " + text, Remedy: remedy, Err: err}
	}
	const again = "delete it and take a new snapshot"
	m := &manifest{}
	err = atomicfile.ReadJSON(filepath.Join(dir, manifestFile), m)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil, fail(v1.CodeNotFound, "does not exist", "", nil)
	case err != nil:
		return nil, nil, fail(v1.CodeSnapshotCorrupt, "has an unreadable manifest", again, err)
	case m.Format != snapshotFormat:
		text := fmt.Sprintf("has format %d, but this version reads format %d", m.Format, snapshotFormat)
		return nil, nil, fail(v1.CodeSnapshotVersion, text, "restore it with the version of recluse that took it", nil)
	}
	f, err := os.Open(filepath.Join(dir, stateFile))
	if err != nil {
		return nil, nil, fail(v1.CodeSnapshotCorrupt, "has no state", again, err)
	}
	if err := b.verify(f, m); err != nil {
		_ = f.Close()
		return nil, nil, fail(v1.CodeSnapshotCorrupt, "is damaged", again, err)
	}
	return m, f, nil
}

// verify compares the state of a snapshot with its checksum. A state that was verified before is only read again if its
// file has changed, because a template is restored many times.
func (b *Backend) verify(f *os.File, m *manifest) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	st, _ := info.Sys().(*syscall.Stat_t)
	key := verified{st.Ino, info.Size(), info.ModTime().UnixNano()}
	if _, known := b.verified.Load(key); !known {
		sum, size, err := checksum(f)
		if err != nil {
			return err
		}
		if size != m.Snapshot.Size || sum != m.CRC {
			return errors.New("the checksum of its state does not match")
		}
		b.verified.Store(key, true)
	}
	_, err = f.Seek(0, io.SeekStart)
	return err
}

// verified identifies a file whose checksum was compared.
type verified struct {
	inode       uint64
	size, mtime int64
}

// DeleteSnapshot implements sandbox.Backend.
func (b *Backend) DeleteSnapshot(_ context.Context, id string) error {
	if !backendkit.ValidID(id) {
		return nil
	}
	dir := b.snapshotDir(id)
	// The manifest goes first, so that no half of a snapshot is listed.
	err := os.Remove(filepath.Join(dir, manifestFile))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
		return &v1.Error{Code: v1.CodeInternal, Op: "delete snapshot", Err: err}
	}
	return nil
}

// Snapshots implements sandbox.Backend.
func (b *Backend) Snapshots(context.Context) ([]*sandbox.Snapshot, error) {
	entries, err := os.ReadDir(filepath.Join(b.dir, "snapshots"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: "list snapshots", Err: err}
	}
	var out []*sandbox.Snapshot
	for _, e := range entries {
		m := &manifest{}
		if atomicfile.ReadJSON(filepath.Join(b.snapshotDir(e.Name()), manifestFile), m) == nil &&
			m.Snapshot.ID == e.Name() {
			out = append(out, &m.Snapshot)
		}
	}
	return out, nil
}

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
	m, state, err := b.openSnapshot(dir, "template")
	if err != nil {
		if err := b.makeTemplate(ctx, r, mon, dir); err != nil {
			return nil, err
		}
		if m, state, err = b.openSnapshot(dir, "template"); err != nil {
			return nil, errors.Join(errNoTemplate, err)
		}
	}
	defer state.Close()
	return b.restore(ctx, m, state, r.Spec)
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
	if _, state, err := b.openSnapshot(dir, "template"); err == nil {
		return state.Close() // another process has made it meanwhile
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
	mach, err := b.launch(ctx, &r, mon, nil)
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
	m := &manifest{
		Format: snapshotFormat, Record: r,
		Snapshot: sandbox.Snapshot{
			ID: "template", Backend: Name, Created: time.Now().UTC(), Spec: neutral, Engine: r.Hash, Guest: r.Guest,
		},
	}
	if err := b.save(ctx, m, dir, true); err != nil {
		return no(err)
	}
	return nil
}
