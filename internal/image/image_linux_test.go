package image

import (
	"archive/tar"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/testneed"
)

// TestOrdinaryUser unpacks layers with owners and closed directories as the user nobody, and removes them again.
func TestOrdinaryUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("the whole suite runs as an ordinary user already")
	}
	owned := func(e entry) entry { e.hdr.Uid, e.hdr.Gid = 4242, 4242; return e }
	img := makeImage(t, "", makeLayer(t,
		owned(entry{dir("closed", 0), ""}), owned(file("closed/x", "1")), entry{dir("readonly", 0o555), ""}, file("readonly/y", "2"),
		owned(symlink("link", "closed/x")), entry{tar.Header{Typeflag: tar.TypeReg, Name: "none", Mode: 0}, ""},
	), makeLayer(t, file("readonly/.wh.y", ""), file("closed/z", "3")))
	base, err := os.MkdirTemp("", "image-user") // other users cannot access t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(base)
	const nobody = 65534
	self, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	binary, cache := filepath.Join(base, "test"), filepath.Join(base, "cache")
	archive, err := os.ReadFile(save(t, img, "user:v1"))
	if err := errors.Join(err,
		os.Chmod(base, 0o755), os.WriteFile(binary, self, 0o755), os.Mkdir(cache, 0o755), os.Chown(cache, nobody, nobody),
		os.WriteFile(filepath.Join(base, "image.tar"), archive, 0o644),
	); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		cmd := exec.Command(binary, append([]string{cache, filepath.Join(base, "image.tar")}, args...)...)
		cmd.Env = []string{childEnv + "=1", "HOME=/nonexistent", "TMPDIR=" + cache}
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if got, want := tree(t, run()), "closed/\nclosed/x 1\nclosed/z 3\nlink -> closed/x\nnone \nreadonly/\n"; got != want {
		t.Errorf("unpacked:\n%s", got)
	}
	run("remove")
	if left := tree(t, filepath.Join(cache, "images")) + tree(t, filepath.Join(cache, "tmp")); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

// TestOwnersAsRoot checks that owners are kept if the test runs as root.
func TestOwnersAsRoot(t *testing.T) {
	t.Parallel()
	testneed.Root(t, "giving files away")
	e := file("x", "1")
	e.hdr.Uid, e.hdr.Gid = 1000, 1001
	got, err := newStore(t).Get(t.Context(), writeLayout(t, makeImage(t, "", makeLayer(t, e)), "v1"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(got.RootFS, "x"), &st); err != nil || st.Uid != 1000 || st.Gid != 1001 {
		t.Errorf("owner %d:%d, %v", st.Uid, st.Gid, err)
	}
}

// TestFullDisk unpacks an image that is larger than the disk of the cache.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		testneed.Lacking(t, "the right to mount:", err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	s := &Store{Dir: dir, NoSync: true}
	_, err := s.Get(t.Context(), writeLayout(t, makeImage(t, "", makeLayer(t, file("big", strings.Repeat("x", 4<<20)))), "v1"), Options{})
	wantKind(t, err, NoSpace, "free some space")
	if left := tree(t, filepath.Join(dir, "tmp")); left != "" {
		t.Errorf("left behind:\n%.300s", left)
	}
	if _, err := s.Get(t.Context(), writeLayout(t, hello(t, ""), "v1"), Options{}); err != nil {
		t.Errorf("a small image afterwards: %v", err)
	}
}

// TestSync unpacks with the flush to disk, which the other tests skip.
func TestSync(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.NoSync = false
	if _, err := s.Get(t.Context(), writeLayout(t, hello(t, ""), "v1"), Options{}); err != nil {
		t.Fatal(err)
	}
}
