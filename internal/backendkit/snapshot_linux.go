package backendkit

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/filelock"
	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/sandbox"
)

// ManifestFile is the name of the manifest in the directory of a snapshot.
const ManifestFile = "manifest.json"

// How the names of directories begin that are being written, or removed.
const (
	NewPrefix = ".new-"
	OldPrefix = ".old-"
)

// Manifest describes a snapshot. Backends embed it in a type of their own.
type Manifest struct {
	Format   int              `json:"format"`
	Snapshot sandbox.Snapshot `json:"snapshot"`
	Files    []SavedFile      `json:"files"`
}

// Head returns the manifest itself, for types that embed it.
func (m *Manifest) Head() *Manifest { return m }

// SavedFile is one file of a snapshot, with a checksum to detect a failing disk.
type SavedFile struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	CRC  uint32 `json:"crc32c"`
}

// Snapshots keeps the snapshots and templates of a backend. Each is a directory with a manifest and a directory with
// the saved state.
type Snapshots struct {
	Dir    string // the directory of all snapshots
	State  string // name of the directory with the saved state, in that of a snapshot
	Disk   string // name of the file of a disk, in State
	Format int    // of the manifests that can be read

	verified sync.Map // keys are fileState
}

// fileState identifies one state of a file.
type fileState struct {
	path  string
	inode uint64
	size  int64
	mtime int64
}

// Path returns the directory of a snapshot.
func (s *Snapshots) Path(id string) string { return filepath.Join(s.Dir, id) }

// Save makes the directory dir, which gets its name when it is complete. fill writes the state into a directory.
func (s *Snapshots) Save(dir string, m interface{ Head() *Manifest }, fill func(state string) error) (err error) {
	defer func() { err = SnapshotError(err) }()
	temp, err := os.MkdirTemp(filepath.Dir(dir), NewPrefix)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }() // already renamed, unless a step failed
	// The lock shows that the maker of the directory lives: the sweep removes directories without a lock.
	lock, err := filelock.TryDir(temp)
	if err != nil {
		return err
	}
	defer lock.Release()
	state := filepath.Join(temp, s.State)
	if err := os.Mkdir(state, 0o700); err != nil {
		return err
	}
	if err := fill(state); err != nil {
		if diskFull(temp) {
			err = errors.Join(syscall.ENOSPC, err)
		}
		return err
	}
	h := m.Head()
	if h.Files, h.Snapshot.Size, err = s.checksums(state); err != nil {
		return err
	}
	if err := atomicfile.WriteJSON(filepath.Join(temp, ManifestFile), m); err != nil {
		return err
	}
	return os.Rename(temp, dir)
}

// diskFull reports whether the disk of dir has less than 1 MiB left. What writes a state does not always report why it
// failed.
func diskFull(dir string) bool {
	var st syscall.Statfs_t
	return syscall.Statfs(dir, &st) == nil && st.Bavail*uint64(st.Bsize) < 1<<20
}

// SnapshotError returns the error of a snapshot that failed.
func SnapshotError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*v1.Error](err); ok {
		return err
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

// checksums returns the files of a state with their checksums, and their total size. A disk has no checksum: reading it
// would take as long as copying it, and its blocks may be shared with those of a running sandbox.
func (s *Snapshots) checksums(dir string) ([]SavedFile, int64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, 0, err
	}
	var out []SavedFile
	var total int64
	for _, e := range entries {
		if e.Name() == s.Disk {
			info, err := e.Info()
			if err != nil {
				return nil, 0, err
			}
			out = append(out, SavedFile{Name: e.Name(), Size: info.Size()})
			total += Allocated(info)
			continue
		}
		sum, size, err := checksum(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, 0, err
		}
		out = append(out, SavedFile{Name: e.Name(), Size: size, CRC: sum})
		total += size
	}
	return out, total, nil
}

// Allocated returns how many bytes a file takes on disk.
func Allocated(info os.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return info.Size()
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(path string) (uint32, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	h := crc32.New(castagnoli)
	n, err := io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{f}, make([]byte, 1<<20))
	return h.Sum32(), n, err
}

// Read reads the manifest of a snapshot and checks the files of its state. A file that was checked before is only read
// again if it has changed, because a template is restored many times.
func (s *Snapshots) Read(dir, id string, m interface{ Head() *Manifest }) error {
	fail := func(code v1.Code, text, remedy string, err error) error {
		return &v1.Error{Code: code, Op: "restore", Message: "snapshot " + id + " " + text, Remedy: remedy, Err: err}
	}
	const again = "delete it and take a new snapshot"
	err := atomicfile.ReadJSON(filepath.Join(dir, ManifestFile), m)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fail(v1.CodeNotFound, "does not exist", "", nil)
	case err != nil:
		return fail(v1.CodeSnapshotCorrupt, "has an unreadable manifest", again, err)
	}
	h := m.Head()
	if h.Format != s.Format {
		text := fmt.Sprintf("has format %d, but this version reads format %d", h.Format, s.Format)
		return fail(v1.CodeSnapshotVersion, text, "restore it with the version of recluse that took it", nil)
	}
	for _, f := range h.Files {
		if err := s.verify(filepath.Join(dir, s.State, f.Name), f); err != nil {
			return fail(v1.CodeSnapshotCorrupt, "has a damaged file "+f.Name, again, err)
		}
	}
	return nil
}

// verify compares a file with its size and checksum.
func (s *Snapshots) verify(path string, f SavedFile) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Size() != f.Size {
		return fmt.Errorf("it has %d bytes instead of %d", info.Size(), f.Size)
	}
	st, _ := info.Sys().(*syscall.Stat_t)
	state := fileState{path, st.Ino, info.Size(), info.ModTime().UnixNano()}
	if _, known := s.verified.Load(state); known || f.Name == s.Disk {
		return nil
	}
	sum, _, err := checksum(path)
	if err == nil && sum != f.CRC {
		err = errors.New("its checksum does not match")
	}
	if err == nil {
		s.verified.Store(state, true)
	}
	return err
}

// List returns the complete snapshots.
func (s *Snapshots) List() ([]*sandbox.Snapshot, error) {
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: "list snapshots", Err: err}
	}
	var out []*sandbox.Snapshot
	for _, e := range entries {
		m := &Manifest{}
		if atomicfile.ReadJSON(filepath.Join(s.Path(e.Name()), ManifestFile), m) == nil && m.Snapshot.ID == e.Name() {
			out = append(out, &m.Snapshot)
		}
	}
	return out, nil
}

// Delete removes a snapshot. It succeeds if there is none.
func (s *Snapshots) Delete(id string) error {
	if !ValidID(id) {
		return nil
	}
	if err := Discard(s.Path(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return &v1.Error{Code: v1.CodeInternal, Op: "delete snapshot", Err: err}
	}
	return nil
}

// Discard removes a snapshot or template. It renames the directory first, so that a partly removed one is never
// mistaken for a complete one.
func Discard(dir string) error {
	doomed := filepath.Join(filepath.Dir(dir), OldPrefix+ids.Hex(4))
	if err := os.Rename(dir, doomed); err != nil {
		return err
	}
	return os.RemoveAll(doomed)
}

// CheckSpace refuses a disk that is larger than the free space of the data directory. The default disk is accepted: it
// takes what is written to it, and most sandboxes write little.
func CheckSpace(dir string, spec sandbox.Spec) error {
	if spec.ReadOnly || spec.Limits.Disk == v1.DefaultDisk {
		return nil
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return err
	}
	if free := int64(st.Bavail) * st.Bsize; spec.Limits.Disk > free {
		return &v1.Error{
			Code: v1.CodeDiskFull,
			Op:   "start sandbox",
			Message: fmt.Sprintf("the disk of the data directory has %s free, less than the disk of %s",
				v1.SizeText(free), v1.SizeText(spec.Limits.Disk)),
			Remedy: "set a smaller limit, or free disk space",
		}
	}
	return nil
}
