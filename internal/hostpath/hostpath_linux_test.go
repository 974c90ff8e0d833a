package hostpath

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/testneed"
)

// TestOpenIgnoresSwaps replaces the judged directory by a symlink into a refused one, before and after the judgement.
func TestOpenIgnoresSwaps(t *testing.T) {
	h := newHost(t)
	f, resolved, err := h.policy.Open(h.path("srv/data-link"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if resolved != h.path("srv/data") {
		t.Fatalf("resolved %q", resolved)
	}
	if err := os.Rename(h.path("srv/data"), h.path("srv/moved")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(h.path("etc"), h.path("srv/data")); err != nil {
		t.Fatal(err)
	}
	handle := "/proc/self/fd/" + strconv.Itoa(int(f.Fd()))
	if _, err := os.Stat(handle + "/file"); err != nil {
		t.Errorf("the handle lost its directory: %v", err)
	}
	if _, err := os.Stat(handle + "/shadow"); err == nil {
		t.Error("the handle follows the swapped name")
	}
	if _, err := h.policy.Judge(h.path("srv/data-link")); err == nil {
		t.Error("the swapped name was accepted")
	}
}

// TestOpenRace replaces a directory continuously. Every accepted handle must be the harmless directory.
func TestOpenRace(t *testing.T) {
	h := newHost(t)
	link, stop, done := h.path("srv/racy"), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			tmp := h.path("srv/racy.new")
			os.Symlink([]string{h.path("etc"), h.path("srv/data")}[i%2], tmp)
			os.Rename(tmp, link)
		}
	}()
	accepted := 0
	// on a busy machine the other goroutine may not run for a while
	for i := 0; i < 300 || accepted == 0 && i < 100_000; i++ {
		f, _, err := h.policy.Open(link)
		if err != nil {
			continue
		}
		accepted++
		var st unix.Stat_t
		if err := unix.Fstatat(int(f.Fd()), "shadow", &st, 0); err == nil {
			t.Error("a handle on a refused directory was returned")
		}
		f.Close()
	}
	close(stop)
	<-done
	if accepted == 0 {
		t.Error("the harmless directory was never seen; the test tried nothing")
	}
}

func TestDeletedDirectory(t *testing.T) {
	h := newHost(t)
	f, err := os.Open(h.path("tmp/x"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Remove(h.path("tmp/x")); err != nil {
		t.Fatal(err)
	}
	_, err = h.policy.Judge("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
	var refused *RefusedError
	if !errors.As(err, &refused) || refused.Rule != RuleUnstable {
		t.Errorf("a deleted directory: %v", err)
	}
}

// TestBindMounts uses real bind mounts: the same directory under another name.
func TestBindMounts(t *testing.T) {
	h := newHost(t)
	for _, d := range []string{"mnt/etc", "mnt/ssl", "mnt/lib", "mnt/inside/deep", "mnt/proc", "mnt/ok"} {
		if err := os.MkdirAll(h.path(d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mount := func(source, target, fstype string, flags uintptr) {
		t.Helper()
		if err := unix.Mount(source, h.path(target), fstype, flags, ""); err != nil {
			if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
				testneed.Lacking(t, "the right to mount:", err)
			}
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(h.path(target), unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
	}
	mount(h.path("etc"), "mnt/etc", "", unix.MS_BIND)
	mount(h.path("etc/ssl"), "mnt/ssl", "", unix.MS_BIND)
	mount(h.path("var/lib"), "mnt/lib", "", unix.MS_BIND)
	mount(h.path("etc/ssl"), "mnt/inside/deep", "", unix.MS_BIND)
	mount(h.path("srv/data"), "mnt/ok", "", unix.MS_BIND)
	mount("proc", "mnt/proc", "proc", 0)
	for _, path := range []string{"mnt/etc", "mnt/etc/ssl", "mnt/ssl", "mnt/lib", "mnt/lib/docker", "mnt/inside", "mnt/inside/deep", "mnt/proc", "mnt/proc/1", "mnt"} {
		if got, err := h.policy.Judge(h.path(path)); err == nil {
			t.Errorf("Judge(%q) = %q, want a refusal", path, got)
		}
	}
	for _, path := range []string{"mnt/ok", "srv/data", "mnt/lib/app"} {
		if _, err := h.policy.Judge(h.path(path)); err != nil {
			t.Errorf("Judge(%q): %v", path, err)
		}
	}
}

// TestMountTable tests mount tables that would need a special host: subvolumes, escapes, hidden mounts.
func TestMountTable(t *testing.T) {
	h := newHost(t)
	table := strings.ReplaceAll(`1 0 0:1 /@ / rw shared:1 - btrfs /dev/a rw
2 1 0:1 / DIR/opt rw - btrfs /dev/a rw
3 1 0:1 /@home/x\040y DIR/srv/with\040space rw - btrfs /dev/a rw
4 1 0:5 / DIR/tmp rw - proc proc rw
5 1 0:6 / DIR/tmp rw - tmpfs tmpfs rw
`, "DIR", h.dir)
	h.policy.mountinfo = filepath.Join(h.dir, "mountinfo")
	if err := os.WriteFile(h.policy.mountinfo, []byte(table), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := h.policy.Judge(h.path("opt")); err == nil {
		t.Error("the top of the file system that holds everything was accepted")
	}
	for _, path := range []string{"srv/with space", "tmp", "tmp/x"} {
		if _, err := h.policy.Judge(h.path(path)); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := os.WriteFile(h.policy.mountinfo, []byte("nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := h.policy.Judge(h.path("srv/data")); err == nil {
		t.Error("with an unreadable mount table the judgement must fail closed")
	}
}

func BenchmarkJudge(b *testing.B) {
	dir := b.TempDir()
	for b.Loop() {
		if _, err := Default().Judge(dir); err != nil {
			b.Fatal(err)
		}
	}
}
