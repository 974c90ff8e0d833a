//go:build linux

package gvisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/backendkit"
	programs "github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/filelock"
	"github.com/recluse-dev/recluse/internal/guest/host"
	"github.com/recluse-dev/recluse/internal/guest/wire"
	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/sandbox"
)

// snapshotFormat is incremented when older snapshots can no longer be read.
const snapshotFormat = 2

// manifest describes a snapshot. It is stored beside the files of the engine.
type manifest struct {
	Format   int              `json:"format"`
	Snapshot sandbox.Snapshot `json:"snapshot"`
	Record   record           `json:"record"` // of the sandbox that the snapshot was taken from
	Held     []heldFile       `json:"held"`
	Files    []savedFile      `json:"files"`
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

// savedFile is one file of the checkpoint, with a checksum to detect a failing disk.
type savedFile struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	CRC  uint32 `json:"crc32c"`
}

const (
	manifestFile  = "manifest.json"
	checkpointDir = "checkpoint"

	// goferFile in the directory of a checkpoint makes the engine write or read it by a process of its own, which copies
	// a large disk into diskFile as a whole (cmd/recluse-engine, checkpoint.go).
	goferFile = "gcs_opts.json"
	diskFile  = "disk.img"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (b *Backend) snapshotDir(id string) string { return filepath.Join(b.dir, "snapshots", id) }

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
			return nil, errors.Join(snapshotError(err), resumePaused(ctx, e, id))
		}
	}
	// The guest has listed the held files a moment ago. A program that runs meanwhile may load another file before the
	// checkpoint stops it. That file is not in the list, and a later change of it is not noticed. A second list after
	// the checkpoint would not help, because the guest has continued by then.
	m := &manifest{Format: snapshotFormat, Snapshot: snap, Record: *r, Held: b.fingerprint(r, opts.Held)}
	// The snapshot of a fork is only needed until the fork is made.
	durable := opts.Labels[forkLabel] == ""
	if err := b.save(ctx, m, b.snapshotDir(snap.ID), durable); err != nil {
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

// forkLabel is the label with which Sandbox.Fork marks its snapshots.
const forkLabel = "recluse.fork-of"

// save writes a checkpoint and its manifest into dir. The directory gets its name when it is complete: if durable, also
// after a power failure. Otherwise checksums show that memory is incomplete.
func (b *Backend) save(ctx context.Context, m *manifest, dir string, durable bool) (err error) {
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
	image := filepath.Join(temp, checkpointDir)
	if err := os.Mkdir(image, 0o700); err != nil {
		return snapshotError(err)
	}
	eng, err := b.engineOf(m.Record.Engine, "snapshot")
	if err != nil {
		return err
	}
	if m.Record.Writable {
		if err := os.WriteFile(filepath.Join(image, goferFile), []byte("{}"), 0o600); err != nil {
			return snapshotError(err)
		}
	}
	// The sandbox keeps running in any case. It is ended only when the snapshot is complete.
	if err := b.driver(eng.Path, m.Record.Cgroup).checkpoint(ctx, m.Record.ID, image, true); err != nil {
		if diskFull(temp) {
			err = errors.Join(syscall.ENOSPC, err)
		}
		return snapshotError(err)
	}
	if _, err := os.Stat(filepath.Join(image, diskFile)); errors.Is(err, os.ErrNotExist) {
		_ = os.Remove(filepath.Join(image, goferFile)) // the disk is small and part of the pages
	}
	// The files are linked while the sandbox runs, so a file that is shared after the checkpoint is also in the
	// snapshot, although programs in its memory do not know it.
	if err := sharedOf(image).Create(b.shared(m.Record.ID)); err != nil {
		return snapshotError(err)
	}
	if m.Files, m.Snapshot.Size, err = checksums(image); err != nil {
		return snapshotError(err)
	}
	if err := atomicfile.WriteJSON(filepath.Join(temp, manifestFile), m); err != nil {
		return snapshotError(err)
	}
	if durable {
		if err := syncTree(temp); err != nil {
			return snapshotError(err)
		}
	}
	if err := os.Rename(temp, dir); err != nil {
		return snapshotError(err)
	}
	if durable {
		return snapshotError(syncFile(filepath.Dir(dir)))
	}
	return nil
}

// syncTree writes everything below a directory to the disk, and the directory itself.
func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() && !d.Type().IsRegular() {
			return err
		}
		return syncFile(path)
	})
}

// syncFile writes a file or a directory to the disk. Tests replace it.
var syncFile = func(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// diskFull reports whether the disk of dir has less than 1 MiB left. The engine does not always report why it failed.
func diskFull(dir string) bool {
	var st syscall.Statfs_t
	return syscall.Statfs(dir, &st) == nil && st.Bavail*uint64(st.Bsize) < 1<<20
}

func snapshotError(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return &v1.Error{Code: v1.CodeCancelled, Op: "snapshot", Message: "cancelled", Err: err}
	}
	e := &v1.Error{Code: v1.CodeInternal, Op: "snapshot", Message: "the snapshot could not be written", Err: err}
	if errors.Is(err, syscall.ENOSPC) || strings.Contains(err.Error(), "no space left") {
		e.Code = v1.CodeDiskFull
		e.Message = "the disk is full; the sandbox keeps running and the incomplete snapshot was removed"
		e.Remedy = "free disk space, or delete snapshots"
	}
	return e
}

// checksums returns the files of a checkpoint with their checksums, and their total size. The disk has no checksum:
// reading it would take as long as copying it, and its blocks may be shared with those of a running sandbox.
func checksums(dir string) ([]savedFile, int64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, 0, err
	}
	var out []savedFile
	var total int64
	for _, e := range entries {
		if e.Name() == diskFile {
			info, err := e.Info()
			if err != nil {
				return nil, 0, err
			}
			out = append(out, savedFile{Name: e.Name(), Size: info.Size()})
			total += allocated(info)
			continue
		}
		sum, size, err := checksum(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, 0, err
		}
		out = append(out, savedFile{Name: e.Name(), Size: size, CRC: sum})
		total += size
	}
	return out, total, nil
}

// allocated returns how many bytes a file takes on disk.
func allocated(info os.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return info.Size()
}

func checksum(path string) (uint32, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	h := crc32.New(castagnoli)
	n, err := io.CopyBuffer(struct{ io.Writer }{h}, f, make([]byte, 1<<20))
	return h.Sum32(), n, err
}

// fingerprint returns the present state of the held files that are host files.
func (b *Backend) fingerprint(r *record, held []string) []heldFile {
	var out []heldFile
	for _, inside := range held {
		path, ok := hostPath(r, inside)
		if !ok {
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
	dir := b.snapshotDir(snap.ID)
	m, err := b.readManifest(dir, snap.ID)
	if err != nil {
		return nil, err
	}
	return b.restore(ctx, m, dir, backendkit.RestoredSpec(m.Record.Spec, opts))
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
	fail := func(code v1.Code, text, remedy string, err error) error {
		return &v1.Error{
			Code:    code,
			Op:      "restore",
			Message: fmt.Sprintf("snapshot %s %s", id, text),
			Remedy:  remedy,
			Err:     err,
		}
	}
	m := &manifest{}
	err := atomicfile.ReadJSON(filepath.Join(dir, manifestFile), m)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fail(v1.CodeNotFound, "does not exist", "", nil)
	}
	if err != nil {
		return nil, fail(v1.CodeSnapshotCorrupt, "has an unreadable manifest", "delete it and take a new snapshot", err)
	}
	if m.Format != snapshotFormat {
		text := fmt.Sprintf("has format %d, but this version reads format %d", m.Format, snapshotFormat)
		return nil, fail(v1.CodeSnapshotVersion, text, "restore it with the version of recluse that took it", nil)
	}
	for _, f := range m.Files {
		path := filepath.Join(dir, checkpointDir, f.Name)
		seen, err := statHeld(path)
		if _, known := b.verified.Load(seen); (known || f.Name == diskFile) && err == nil && seen.Size == f.Size {
			continue // verified before: a template is restored many times
		}
		sum, size, err := checksum(path)
		if err == nil && sum == f.CRC {
			b.verified.Store(seen, true)
		}
		if err != nil || size != f.Size || sum != f.CRC {
			return nil, fail(v1.CodeSnapshotCorrupt, "has a damaged file "+f.Name,
				"delete it and take a new snapshot", err)
		}
	}
	for _, h := range m.Held {
		if now, err := statHeld(h.Path); err != nil || now != h {
			return nil, fail(v1.CodeSnapshotStale, "is stale: "+h.Path+", which its programs use, has changed",
				"take a new snapshot", err)
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
func (b *Backend) DeleteSnapshot(_ context.Context, id string) error {
	if !backendkit.ValidID(id) {
		return nil
	}
	if err := discard(b.snapshotDir(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return &v1.Error{Code: v1.CodeInternal, Op: "delete snapshot", Err: err}
	}
	return nil
}

// Snapshots implements sandbox.Backend.
func (b *Backend) Snapshots(context.Context) ([]*sandbox.Snapshot, error) {
	entries, err := os.ReadDir(filepath.Join(b.dir, "snapshots"))
	if err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: "list snapshots", Err: err}
	}
	var out []*sandbox.Snapshot
	for _, e := range entries {
		m := &manifest{}
		if atomicfile.ReadJSON(filepath.Join(b.dir, "snapshots", e.Name(), manifestFile), m) == nil &&
			m.Snapshot.ID == e.Name() {
			out = append(out, &m.Snapshot)
		}
	}
	return out, nil
}

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
		Format: snapshotFormat,
		Record: *mach.record,
		Held:   b.fingerprint(mach.record, held),
		Snapshot: sandbox.Snapshot{
			ID:      "template",
			Backend: Name,
			Created: time.Now().UTC(),
			Spec:    neutral.spec,
			Engine:  b.engine.Hash,
			Guest:   b.guest.Hash,
		},
	}
	if err := b.save(ctx, m, dir, false); err != nil {
		return nil, noTemplate(fmt.Errorf("save: %w", err))
	}
	return m, nil
}
