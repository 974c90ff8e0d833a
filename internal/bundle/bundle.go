// Package bundle finds the two programs that recluse starts: the engine and the guest.
//
// They are looked for where somebody named them (RECLUSE_ENGINE, RECLUSE_GUEST), then in
// this program itself (make build embeds both; on macOS and Windows the guests for both kinds
// of machine that containers may be on), then beside it, then on PATH. Wherever they come from they are run from a cache that is addressed by content,
//
//	<cache>/bin/<sha256>/recluse-engine
//
// because every sandbox and snapshot records the hash of its engine and guest and must be
// driven by that very one later, also after an upgrade. What is in the cache was verified
// when it was written; later starts only look whether it is there. The running program itself
// is never executed again: it may be anybody's, with our library in it.
package bundle

import (
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/xdg"
)

// The programs' names, as files.
const (
	EngineName = "recluse-engine"
	GuestName  = "recluse-guest"
)

// module is where go install finds them.
const module = "github.com/recluse-dev/recluse"

// variables name a program explicitly.
var variables = map[string]string{EngineName: "RECLUSE_ENGINE", GuestName: "RECLUSE_GUEST"}

// Program is one of the programs, ready to be executed.
type Program struct {
	Path   string `json:"path"`   // in the cache
	Hash   string `json:"hash"`   // sha256 of the file, in hex
	Origin string `json:"origin"` // where it was found, for people
}

// Engine gives the engine from the user's cache.
func Engine(ctx context.Context) (Program, error) {
	return fromDefault(ctx, EngineName, runtime.GOARCH)
}

// Guest gives the guest from the user's cache.
func Guest(ctx context.Context) (Program, error) { return GuestFor(ctx, runtime.GOARCH) }

// GuestFor gives the guest for a Linux machine of another kind, as Go calls it: containers may be on one.
func GuestFor(ctx context.Context, arch string) (Program, error) {
	return fromDefault(ctx, GuestName, arch)
}

// fromDefault finds a program for the user's cache directory.
func fromDefault(ctx context.Context, name, arch string) (Program, error) {
	dir, err := xdg.Cache()
	if err != nil {
		return Program{}, err
	}
	s, err := Open(dir)
	if err != nil {
		return Program{}, err
	}
	return s.find(ctx, name, arch)
}

// Store is a cache directory with programs in it. Several processes may use one at once.
type Store struct {
	dir string // <cache>/bin

	// What differs in tests.
	embedded func() ([]Embedded, error)
	beside   func() ([]string, error)

	mu    sync.Mutex
	found map[string]Program // guarded by mu; by the name of its file
}

var (
	storesMu sync.Mutex
	stores   = map[string]*Store{} // guarded by storesMu; by directory
)

// Open gives the store in a cache directory, which must be private to this user.
func Open(cache string) (*Store, error) {
	storesMu.Lock()
	defer storesMu.Unlock()
	if s := stores[cache]; s != nil {
		return s, nil
	}
	dir := filepath.Join(cache, "bin")
	if err := xdg.Private(dir); err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: "open the program cache", Message: "it cannot be used", Err: err}
	}
	s := &Store{dir: dir, embedded: embeddedPrograms, beside: besideProgram, found: map[string]Program{}}
	stores[cache] = s
	return s, nil
}

// Choose gives the program of this name at a path, or without a path the one that is found.
func (s *Store) Choose(ctx context.Context, path, name string) (Program, error) {
	if path == "" {
		return s.find(ctx, name, runtime.GOARCH)
	}
	p, err := s.adopt(path, name, runtime.GOARCH, "chosen")
	if err != nil {
		return Program{}, &v1.Error{Code: v1.CodeEngineMissing, Op: "find " + name, Message: path + " is no usable program", Remedy: "correct the path, or leave it out", Err: err}
	}
	return p, nil
}

// ByHash gives the engine or guest with which an existing sandbox or snapshot was made.
func (s *Store) ByHash(hash, name string) (Program, error) {
	if sum, err := hex.DecodeString(hash); err != nil || len(sum) != sha256.Size || variables[name] == "" {
		return Program{}, &v1.Error{Code: v1.CodeInvalidRequest, Op: "find " + name, Message: fmt.Sprintf("%q is not a program's hash", hash)}
	}
	p := s.program(hash, name, "cache")
	if err := present(p.Path, -1); err != nil {
		return Program{}, &v1.Error{
			Code: v1.CodeEngineMissing, Op: "find " + name, Message: fmt.Sprintf("the one with hash %.12s…, which made this sandbox, is no longer in the cache", hash),
			Remedy: "install the version of recluse that made it and start any sandbox once", Err: err,
		}
	}
	return p, nil
}

func (s *Store) program(hash, name, origin string) Program {
	return Program{Path: filepath.Join(s.dir, hash, name), Hash: hash, Origin: origin}
}

// find looks in every place, in order, and brings the program into the cache.
func (s *Store) find(ctx context.Context, name, arch string) (Program, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return Program{}, &v1.Error{Code: v1.CodeCancelled, Op: "find " + name, Message: "given up", Err: err}
	}
	file := fileName(name, arch)
	if p, ok := s.found[file]; ok && present(p.Path, -1) == nil {
		return p, nil
	}
	p, err := s.search(name, arch)
	if err != nil {
		if _, ok := errors.AsType[*v1.Error](err); !ok {
			err = &v1.Error{Code: v1.CodeEngineMissing, Op: "find " + file, Message: "found, but it cannot be used", Err: err}
		}
		return Program{}, err
	}
	s.found[file] = p
	return p, nil
}

// fileName is under what name a program is looked for: the one for machines like this is called as it is.
func fileName(name, arch string) string {
	if arch == runtime.GOARCH {
		return name
	}
	return name + "-" + arch
}

func (s *Store) search(name, arch string) (Program, error) {
	variable, file := variables[name], fileName(name, arch)
	if path := os.Getenv(variable); path != "" {
		p, err := s.adopt(path, name, arch, variable)
		if err != nil {
			return Program{}, &v1.Error{Code: v1.CodeEngineMissing, Op: "find " + file, Message: variable + " names no usable program", Remedy: "correct or unset it", Err: err}
		}
		return p, nil
	}
	list, err := s.embedded()
	if err != nil {
		return Program{}, err
	}
	for _, e := range list {
		if e.Name == name && e.Arch == arch {
			return s.extract(e)
		}
	}
	dirs, err := s.beside()
	if err != nil {
		return Program{}, err
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, file)
		if fi, err := os.Stat(path); err == nil && fi.Mode().IsRegular() {
			return s.adopt(path, name, arch, "beside this program")
		}
	}
	if path, err := exec.LookPath(file); err == nil {
		return s.adopt(path, name, arch, "PATH")
	}
	return Program{}, &v1.Error{
		Code: v1.CodeEngineMissing, Op: "find " + file, Message: fmt.Sprintf("neither embedded nor beside this program, on PATH or named by %s", variable), Remedy: remedy(name, arch),
	}
}

// remedy says how a program is come by that was not found.
func remedy(name, arch string) string {
	source := fmt.Sprintf("%s/cmd/%s@%s", module, name, version())
	if arch == runtime.GOARCH && runtime.GOOS == "linux" {
		return fmt.Sprintf("run make build, or CGO_ENABLED=0 go install %s and put Go's bin directory on PATH", source)
	}
	// Go puts programs for other machines into a directory of their own, which is on nobody's PATH.
	return fmt.Sprintf("CGO_ENABLED=0 GOOS=linux GOARCH=%s go install %s, and put it beside this program as %s", arch, source, fileName(name, arch))
}

// Embedded is a program inside this one.
type Embedded struct {
	Name string `json:"name"`
	Arch string `json:"arch"` // GOARCH; the system is always linux
	Hash string `json:"hash"` // of the program, not of its compressed form
	Size int64  `json:"size"`
	open func() (io.ReadCloser, error)
}

// extract brings an embedded program into the cache.
func (s *Store) extract(e Embedded) (Program, error) {
	p := s.program(e.Hash, e.Name, "embedded")
	if present(p.Path, e.Size) == nil {
		return p, nil
	}
	r, err := e.open()
	if err != nil {
		return Program{}, err
	}
	defer r.Close()
	if _, err := s.put(r, e.Name, e.Hash, e.Size); err != nil {
		return Program{}, err
	}
	return p, nil
}

// memo remembers what the file at a path was, so that it need not be read at every start.
type memo struct {
	Path        string `json:"path"`
	Fingerprint string `json:"fingerprint"`
	Hash        string `json:"hash"`
	Size        int64  `json:"size"`
}

// adopt copies the program at path into the cache, unless that was done before and the file is the same still.
func (s *Store) adopt(path, name, arch, origin string) (Program, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return Program{}, err
	}
	origin += " (" + path + ")"
	f, err := os.Open(path)
	if err != nil {
		return Program{}, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return Program{}, err
	}
	if !fi.Mode().IsRegular() {
		return Program{}, fmt.Errorf("%s is not a regular file", path)
	}
	now := memo{Path: path, Fingerprint: fingerprint(fi), Size: fi.Size()}
	key := sha256.Sum256([]byte(path))
	note := filepath.Join(s.dir, "known", fileName(name, arch)+"-"+hex.EncodeToString(key[:8])+".json")
	if old, err := readMemo(note); err == nil && old.Path == now.Path && old.Fingerprint == now.Fingerprint && old.Size == now.Size {
		if p := s.program(old.Hash, name, origin); present(p.Path, old.Size) == nil {
			return p, nil
		}
	}
	if err := runnable(f, arch); err != nil {
		return Program{}, fmt.Errorf("%s: %w", path, err)
	}
	if now.Hash, err = s.put(f, name, "", fi.Size()); err != nil {
		return Program{}, err
	}
	// A file that is being replaced while it is read gets no memo, and fails by its size or runs as what was read.
	if after, err := f.Stat(); err == nil && fingerprint(after) == now.Fingerprint {
		if err := writeMemo(note, now); err != nil {
			return Program{}, err
		}
	}
	return s.program(now.Hash, name, origin), nil
}

// runnable refuses what the kernel of a Linux machine of this kind would not execute.
func runnable(r io.ReaderAt, arch string) error {
	e, err := elf.NewFile(r)
	if err != nil {
		return errors.New("not a Linux program")
	}
	want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]
	if want != elf.EM_NONE && e.Machine != want {
		return fmt.Errorf("a program for %s, not for %s", e.Machine, want)
	}
	return nil
}

// put writes a program into the cache: whole and verified, or not at all. An empty want takes whatever hash it has.
func (s *Store) put(r io.Reader, name, want string, size int64) (string, error) {
	// A program that is written by one goroutine while another starts a process stays open for writing in that child
	// until its exec, and executing it meanwhile fails (ETXTBSY). So nothing is started while one is written; that is
	// once per version.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()

	tmp, err := os.CreateTemp(s.dir, "."+name+"-*")
	if err != nil {
		return "", full(err)
	}
	defer os.Remove(tmp.Name())
	sum := sha256.New()
	err = copyExactly(tmp, r, sum, size)
	if err == nil {
		err = tmp.Chmod(0o755)
	}
	if err == nil {
		// After a crash a file may have its length and not its content, and later starts look at the length only.
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return "", full(err)
	}
	got := hex.EncodeToString(sum.Sum(nil))
	if want != "" && got != want {
		return "", fmt.Errorf("%s has hash %.12s… and should have %.12s…: this program is damaged", name, got, want)
	}
	dir := filepath.Join(s.dir, got)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", full(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // whatever the umask was
		return "", err
	}
	if err := os.Rename(tmp.Name(), filepath.Join(dir, name)); err != nil {
		return "", full(err)
	}
	return got, nil
}

func copyExactly(w io.Writer, r io.Reader, sum hash.Hash, size int64) error {
	n, err := io.Copy(io.MultiWriter(w, sum), io.LimitReader(r, size+1))
	if err != nil {
		return err
	}
	if n != size {
		return fmt.Errorf("%d bytes were expected and %d or more came", size, n)
	}
	return nil
}

// full names the one cause for which there is something to do.
func full(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return &v1.Error{Code: v1.CodeDiskFull, Op: "fill the program cache", Message: "no space is left", Remedy: "make room, or set XDG_CACHE_HOME to another disk", Err: err}
	}
	return err
}

// present reports with nil that a program is there, of the right size if one is given.
func present(path string, size int64) error {
	fi, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() || size >= 0 && fi.Size() != size || fi.Size() == 0 {
		return fmt.Errorf("%s: %w", path, fs.ErrInvalid)
	}
	return nil
}

func readMemo(path string) (memo, error) {
	var m memo
	if err := atomicfile.ReadJSON(path, &m); err != nil {
		return m, err
	}
	if sum, err := hex.DecodeString(m.Hash); err != nil || len(sum) != sha256.Size {
		return m, errors.New("no hash")
	}
	return m, nil
}

func writeMemo(path string, m memo) error {
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = atomicfile.WriteJSON(path, m)
	}
	return full(err)
}

// besideProgram gives the directories that hold the running program: as it was called and as it really is.
func besideProgram() ([]string, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, nil //nolint:nilerr // then there is no beside
	}
	dirs := []string{filepath.Dir(exe)}
	if target, err := filepath.EvalSymlinks(exe); err == nil && filepath.Dir(target) != dirs[0] {
		dirs = append(dirs, filepath.Dir(target))
	}
	return dirs, nil
}
