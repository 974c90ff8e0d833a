// Package bundle finds the two programs that recluse starts: the engine and the guest.
//
// It searches them in this order: the paths in RECLUSE_ENGINE and RECLUSE_GUEST, this program itself (make build embeds
// both; on macOS and Windows it embeds the guests for all architectures of Docker engines), the directory of this
// program, PATH. Wherever a program was found, it is run from a content-addressed cache:
//
//	<cache>/bin/<sha256>/recluse-engine
//
// Every sandbox and snapshot records the hash of its engine and guest, and must be used with the same programs later,
// also after an upgrade. The content of the cache was verified when it was written; later starts only check that a
// program exists. The running program never executes itself, because it may be any program that uses our library.
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

// File names of the programs.
const (
	EngineName = "recluse-engine"
	GuestName  = "recluse-guest"
)

// module is the module path for go install.
const module = "github.com/recluse-dev/recluse"

// variables are the environment variables with the paths of the programs.
var variables = map[string]string{EngineName: "RECLUSE_ENGINE", GuestName: "RECLUSE_GUEST"}

// Program is a program in the cache, ready to be executed.
type Program struct {
	Path   string `json:"path"`   // in the cache
	Hash   string `json:"hash"`   // sha256 of the file, in hex
	Origin string `json:"origin"` // where it was found, as text for users
}

// Engine returns the engine from the user's cache.
func Engine(ctx context.Context) (Program, error) {
	return fromDefault(ctx, EngineName, runtime.GOARCH)
}

// Guest returns the guest from the user's cache.
func Guest(ctx context.Context) (Program, error) { return GuestFor(ctx, runtime.GOARCH) }

// GuestFor returns the guest for a Linux machine with the architecture arch (a GOARCH value): a Docker engine may be on
// such a machine.
func GuestFor(ctx context.Context, arch string) (Program, error) {
	return fromDefault(ctx, GuestName, arch)
}

// fromDefault finds a program and copies it into the user's cache directory.
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

// Store is a cache directory with programs. Several processes may use it at the same time.
type Store struct {
	dir string // <cache>/bin

	// Replaced in tests.
	embedded func() ([]Embedded, error)
	beside   func() ([]string, error)

	mu    sync.Mutex
	found map[string]Program // guarded by mu; by file name
}

var (
	storesMu sync.Mutex
	stores   = map[string]*Store{} // guarded by storesMu; by directory
)

// Open returns the store in a cache directory, which must be private to this user.
func Open(cache string) (*Store, error) {
	storesMu.Lock()
	defer storesMu.Unlock()
	if s := stores[cache]; s != nil {
		return s, nil
	}
	dir := filepath.Join(cache, "bin")
	if err := xdg.Private(dir); err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: "open program cache", Message: "cannot use " + dir, Err: err}
	}
	s := &Store{dir: dir, embedded: embeddedPrograms, beside: besideProgram, found: map[string]Program{}}
	stores[cache] = s
	return s, nil
}

// Choose returns the program at path. If path is empty, it searches the program by name.
func (s *Store) Choose(ctx context.Context, path, name string) (Program, error) {
	if path == "" {
		return s.find(ctx, name, runtime.GOARCH)
	}
	p, err := s.cacheFile(path, name, runtime.GOARCH, "chosen")
	if err != nil {
		return Program{}, &v1.Error{
			Code:    v1.CodeEngineMissing,
			Op:      "find " + name,
			Message: "cannot use " + path,
			Remedy:  "correct the path, or remove it from the configuration",
			Err:     err,
		}
	}
	return p, nil
}

// ByHash returns the engine or guest that an existing sandbox or snapshot was made with.
func (s *Store) ByHash(hash, name string) (Program, error) {
	if sum, err := hex.DecodeString(hash); err != nil || len(sum) != sha256.Size || variables[name] == "" {
		return Program{}, &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "find " + name,
			Message: fmt.Sprintf("invalid hash %q", hash),
		}
	}
	p := s.program(hash, name, "cache")
	if err := checkPresent(p.Path, -1); err != nil {
		return Program{}, &v1.Error{
			Code:    v1.CodeEngineMissing,
			Op:      "find " + name,
			Message: fmt.Sprintf("version %.12s…, which made this sandbox, is no longer in the cache", hash),
			Remedy:  "install the version of recluse that made it and start any sandbox once",
			Err:     err,
		}
	}
	return p, nil
}

func (s *Store) program(hash, name, origin string) Program {
	return Program{Path: filepath.Join(s.dir, hash, name), Hash: hash, Origin: origin}
}

// find searches a program and copies it into the cache.
func (s *Store) find(ctx context.Context, name, arch string) (Program, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return Program{}, &v1.Error{Code: v1.CodeCancelled, Op: "find " + name, Message: "cancelled", Err: err}
	}
	file := fileName(name, arch)
	if p, ok := s.found[file]; ok && checkPresent(p.Path, -1) == nil {
		return p, nil
	}
	p, err := s.search(name, arch)
	if err != nil {
		if _, ok := errors.AsType[*v1.Error](err); !ok {
			err = &v1.Error{
				Code:    v1.CodeEngineMissing,
				Op:      "find " + file,
				Message: "the program was found but cannot be used",
				Err:     err,
			}
		}
		return Program{}, err
	}
	s.found[file] = p
	return p, nil
}

// fileName returns the file name of a program for an architecture. For that of this machine, it is the plain name.
func fileName(name, arch string) string {
	if arch == runtime.GOARCH {
		return name
	}
	return name + "-" + arch
}

func (s *Store) search(name, arch string) (Program, error) {
	variable, file := variables[name], fileName(name, arch)
	if path := os.Getenv(variable); path != "" {
		p, err := s.cacheFile(path, name, arch, variable)
		if err != nil {
			return Program{}, &v1.Error{
				Code:    v1.CodeEngineMissing,
				Op:      "find " + file,
				Message: "cannot use the program in " + variable,
				Remedy:  "correct or unset " + variable,
				Err:     err,
			}
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
			return s.cacheFile(path, name, arch, "beside this program")
		}
	}
	if path, err := exec.LookPath(file); err == nil {
		return s.cacheFile(path, name, arch, "PATH")
	}
	return Program{}, &v1.Error{
		Code:    v1.CodeEngineMissing,
		Op:      "find " + file,
		Message: fmt.Sprintf("not found: not embedded, not beside this program, not on PATH, not in %s", variable),
		Remedy:  remedy(name, arch),
	}
}

// remedy returns how to get a program that was not found.
func remedy(name, arch string) string {
	source := fmt.Sprintf("%s/cmd/%s@%s", module, name, version())
	if arch == runtime.GOARCH && runtime.GOOS == "linux" {
		return fmt.Sprintf("run make build, or CGO_ENABLED=0 go install %s and put Go's bin directory on PATH", source)
	}
	// Go installs programs for other systems into a separate directory, which is usually not on PATH.
	return fmt.Sprintf("run CGO_ENABLED=0 GOOS=linux GOARCH=%s go install %s, and copy it beside this program as %s",
		arch, source, fileName(name, arch))
}

// Embedded is a program that is embedded in this one.
type Embedded struct {
	Name string `json:"name"`
	Arch string `json:"arch"` // GOARCH; GOOS is always linux
	Hash string `json:"hash"` // of the uncompressed program
	Size int64  `json:"size"`
	open func() (io.ReadCloser, error)
}

// extract copies an embedded program into the cache.
func (s *Store) extract(e Embedded) (Program, error) {
	p := s.program(e.Hash, e.Name, "embedded")
	if checkPresent(p.Path, e.Size) == nil {
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

// memo records the hash of the file at a path, so that the file need not be read at every start.
type memo struct {
	Path        string `json:"path"`
	Fingerprint string `json:"fingerprint"`
	Hash        string `json:"hash"`
	Size        int64  `json:"size"`
}

// cacheFile copies the program at path into the cache, unless it is already there and the file is unchanged.
func (s *Store) cacheFile(path, name, arch, origin string) (Program, error) {
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
	old, err := readMemo(note)
	if err == nil && old.Path == now.Path && old.Fingerprint == now.Fingerprint && old.Size == now.Size {
		if p := s.program(old.Hash, name, origin); checkPresent(p.Path, old.Size) == nil {
			return p, nil
		}
	}
	if err := checkRunnable(f, arch); err != nil {
		return Program{}, fmt.Errorf("%s: %w", path, err)
	}
	if now.Hash, err = s.put(f, name, "", fi.Size()); err != nil {
		return Program{}, err
	}
	// If the file is replaced while it is read, no memo is written. The copy then has the wrong size and fails, or is a
	// program that was read completely.
	if after, err := f.Stat(); err == nil && fingerprint(after) == now.Fingerprint {
		if err := writeMemo(note, now); err != nil {
			return Program{}, err
		}
	}
	return s.program(now.Hash, name, origin), nil
}

// checkRunnable returns an error if the file is not an executable for Linux on arch.
func checkRunnable(r io.ReaderAt, arch string) error {
	e, err := elf.NewFile(r)
	if err != nil {
		return errors.New("not a Linux executable")
	}
	want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]
	if want != elf.EM_NONE && e.Machine != want {
		return fmt.Errorf("the executable is for %s, not for %s", e.Machine, want)
	}
	return nil
}

// put writes a program into the cache, atomically and verified, and returns its hash. If want is not empty, the hash
// must be equal to it.
func (s *Store) put(r io.Reader, name, want string, size int64) (string, error) {
	// If another goroutine starts a process while a program is written, the child has the file open for writing until
	// its exec, and executing the program meanwhile fails (ETXTBSY). Therefore no process is started while a program is
	// written. That happens once per version.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()

	tmp, err := os.CreateTemp(s.dir, "."+name+"-*")
	if err != nil {
		return "", diskFullError(err)
	}
	defer os.Remove(tmp.Name())
	sum := sha256.New()
	err = copyExactly(tmp, r, sum, size)
	if err == nil {
		err = tmp.Chmod(0o755)
	}
	if err == nil {
		// After a crash, a file may have its size but not its content, and later starts check only the size.
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return "", diskFullError(err)
	}
	got := hex.EncodeToString(sum.Sum(nil))
	if want != "" && got != want {
		return "", fmt.Errorf("%s has hash %.12s… but should have %.12s…: this program is damaged", name, got, want)
	}
	dir := filepath.Join(s.dir, got)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", diskFullError(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // independent of the umask
		return "", err
	}
	if err := os.Rename(tmp.Name(), filepath.Join(dir, name)); err != nil {
		return "", diskFullError(err)
	}
	return got, nil
}

func copyExactly(w io.Writer, r io.Reader, sum hash.Hash, size int64) error {
	n, err := io.Copy(io.MultiWriter(w, sum), io.LimitReader(r, size+1))
	if err != nil {
		return err
	}
	if n != size {
		return fmt.Errorf("expected %d bytes, got at least %d", size, n)
	}
	return nil
}

// diskFullError adds a code and a remedy to err if the disk is full. Other errors are returned unchanged.
func diskFullError(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return &v1.Error{
			Code:    v1.CodeDiskFull,
			Op:      "write program cache",
			Message: "the disk is full",
			Remedy:  "free disk space, or set XDG_CACHE_HOME to a directory on another disk",
			Err:     err,
		}
	}
	return err
}

// checkPresent returns nil if a program exists. If size is not negative, the file must have that size.
func checkPresent(path string, size int64) error {
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
		return m, errors.New("missing hash")
	}
	return m, nil
}

func writeMemo(path string, m memo) error {
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = atomicfile.WriteJSON(path, m)
	}
	return diskFullError(err)
}

// besideProgram returns the directory of the running program, and the directory of its file if the path is a link.
func besideProgram() ([]string, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, nil //nolint:nilerr // without the path, there is no such directory
	}
	dirs := []string{filepath.Dir(exe)}
	if target, err := filepath.EvalSymlinks(exe); err == nil && filepath.Dir(target) != dirs[0] {
		dirs = append(dirs, filepath.Dir(target))
	}
	return dirs, nil
}
