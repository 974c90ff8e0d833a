//go:build linux

package rlm

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestAFileOfADirectoryIsReadWhenItIsWanted(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.txt", "b.txt"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("as it was"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// Code that changes a file before it reads it gets the new content.
	d := newDesk(t, block(`
files = {f["path"]: f["file"] for f in __import__("json").load(open(context._root + "/context_0.json"))}
with open(context._root + "/" + files["b.txt"], "w") as f:
    f.write("as it is now")
FINAL([len(context), context.size("b.txt"), context["a.txt"], context["b.txt"]])`))
	same(t, "answer", d.answered(Question{Inputs: []Input{File(dir)}}).Answer, `[2, 9, "as it was", "as it is now"]`)
}

func TestTheSharedDirectoryIsBornEmptyAndNobodyWritesThere(t *testing.T) {
	m, err := sandboxes(t).Open(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	cell := func(code string) string {
		t.Helper()
		v, err := m.Cell(t.Context(), sandbox.Cell{Code: code})
		if err != nil || !v.OK() {
			t.Fatal(v, err)
		}
		return v.Result.Text()
	}
	same(t, "at first", cell("import os\nos.listdir('/shared')"), "[]")
	// The user in the sandbox owns the file, and its mode allows everything.
	path := filepath.Join(t.TempDir(), "mine.txt")
	if err := errors.Join(os.WriteFile(path, []byte("text"), 0o666), os.Chmod(path, 0o666)); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(path, 1000, 1000); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.(sharer).Share(t.Context(), path, "mine.txt"); err != nil {
		t.Fatal(err)
	}
	same(t, "read", cell("open('/shared/mine.txt').read()"), "'text'")
	same(t, "what fails because nothing can be written there", cell(`
import errno
def fails(f):
    try:
        f()
    except OSError as e:
        return errno.errorcode[e.errno]
    return "did not fail"
[fails(lambda: open('/shared/mine.txt', 'a')), fails(lambda: os.truncate('/shared/mine.txt', 0)), fails(lambda: os.chmod('/shared/mine.txt', 0o600))]`), "['EROFS', 'EROFS', 'EROFS']")
	// The mount is read-only, also for root.
	same(t, "the mount is read-only", cell("['ro' in l.split()[3].split(',') for l in open('/proc/self/mounts') if l.split()[1] == '/shared']"), "[True]")
	if text, err := os.ReadFile(path); err != nil || string(text) != "text" {
		t.Errorf("the host's file: %q %v", text, err)
	}
}

// asNobody calls a function with the file system rights of the user nobody.
func asNobody(t *testing.T, do func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		do() // this user has no special rights either
		return
	}
	runtime.LockOSThread() // file system rights belong to a thread
	if err := unix.Setfsuid(65534); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setfsuid(0); err != nil {
			t.Fatal(err)
		}
		runtime.UnlockOSThread()
	}()
	do()
}

// openDir returns a new directory that the user nobody can read. If the directory for temporary files is private,
// openDir tries other directories.
func openDir(t *testing.T) string {
	t.Helper()
	var tried error
	for _, under := range []string{os.TempDir(), "/tmp", "/var/tmp", "/dev/shm"} {
		dir, err := os.MkdirTemp(under, "recluse-open-")
		if err != nil {
			tried = errors.Join(tried, err)
			continue
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		asNobody(t, func() { _, err = os.ReadDir(dir) })
		if err == nil {
			return dir
		}
		tried = errors.Join(tried, err)
	}
	t.Fatal("the user nobody cannot read any of the directories: ", tried)
	return ""
}

func TestAContextThatMayNotBeReadIsRefused(t *testing.T) {
	at := openDir(t)
	work, tree, closed := filepath.Join(at, "work"), filepath.Join(at, "tree"), filepath.Join(at, "closed")
	for _, d := range []string{work, tree, closed} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]os.FileMode{"secret.txt": 0o000, "tree/open.txt": 0o644, "tree/secret.txt": 0o000, "closed/a.txt": 0o644} {
		p := filepath.Join(at, name)
		if err := errors.Join(os.WriteFile(p, []byte("text"), 0o600), os.Chmod(p, mode)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chmod(work, 0o777), os.Chmod(closed, 0o000)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(closed, 0o755) })
	try := func(name string, inputs ...Input) (s *staged, err error) {
		asNobody(t, func() { s, err = stage(t.Context(), filepath.Join(work, name), inputs) })
		return s, err
	}
	for _, path := range []string{filepath.Join(at, "secret.txt"), closed} {
		_, err := try(filepath.Base(path), File(path))
		same(t, "code", v1.CodeOf(err), v1.CodeContextUnread)
		if !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	s, err := try("tree", File(tree))
	if err != nil {
		t.Fatal(err)
	}
	same(t, "files of a directory", s.Contexts[0].Files, 1)
	same(t, "files of it that may not be read", s.Contexts[0].Skipped, 1)
}
