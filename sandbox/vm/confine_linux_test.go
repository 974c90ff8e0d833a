package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// inJail runs a script in a jail as a monitor would run, and returns its output.
func inJail(t *testing.T, j *jail, script string) string {
	t.Helper()
	if j.dir == "" {
		j.dir = t.TempDir()
	}
	j.program = "/usr/bin/env"
	if j.uid != 0 {
		if err := os.Chown(j.dir, j.uid, j.uid); err != nil {
			t.Fatal(err)
		}
	}
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.CommandContext(t.Context(), j.programPath(), "sh", "-c", script)
	cmd.Stdout, cmd.Stderr = out, out
	if err := j.start(cmd); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the output shows what failed
	text, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestLandlockIsTheJailOfAnOrdinaryUser runs without a user and a file system of its own, as where we are not root.
func TestLandlockIsTheJailOfAnOrdinaryUser(t *testing.T) {
	testneed.Slow(t, "starts processes")
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION); errno != 0 {
		testneed.Lacking(t, fmt.Errorf("landlock: %w", errno))
	}
	host := t.TempDir()
	for _, name := range []string{"secret", "image", "other"} {
		if err := os.WriteFile(filepath.Join(host, name), []byte("content of "+name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got := inJail(t, &jail{files: map[string]string{"image": filepath.Join(host, "image")}}, `
cd `+host+`
cat image; echo
cat secret && echo READ
echo x > image && echo WRITTEN
echo x > new && echo MADE
rm other && echo REMOVED
ls / >/dev/null && echo LISTED
cd - >/dev/null; echo own > f; cat f; mkdir d && rm f && echo fine
grep -h NoNewPrivs /proc/self/status || echo no proc
kill -0 1 && echo SIGNALLED
`)
	if !strings.Contains(got, "content of image") || !strings.Contains(got, "own\nfine") {
		t.Errorf("a monitor cannot work: %s", got)
	}
	for _, bad := range []string{"READ", "WRITTEN", "MADE", "REMOVED", "LISTED", "content of secret"} {
		if strings.Contains(got, bad) {
			t.Errorf("%s: %s", bad, got)
		}
	}
}

func TestTheJailHasItsDevice(t *testing.T) {
	testneed.Slow(t, "starts processes")
	testneed.Root(t, "a user of its own")
	if _, err := os.Stat("/dev/kvm"); err != nil {
		testneed.Lacking(t, err)
	}
	got := inJail(t, &jail{uid: fakeUID, devs: []string{"/dev/kvm"}}, `exec 3<>/dev/kvm && echo open; id -u; echo x > /x && echo WRITTEN`)
	for _, want := range []string{"open\n", fmt.Sprintln(fakeUID)} {
		if !strings.Contains(got, want) {
			t.Errorf("without %q: %s", want, got)
		}
	}
	if strings.Contains(got, "WRITTEN") {
		t.Errorf("its root is writable: %s", got)
	}
}

// smallDisk mounts a file system of a few MiB on a directory.
func smallDisk(t *testing.T, dir, size string) {
	t.Helper()
	testneed.Root(t, "a small file system")
	if err := errors.Join(os.MkdirAll(dir, 0o700), unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

func TestAFullDiskOfImagesIsReported(t *testing.T) {
	image, modules := kernelFiles(t, "")
	root := system(t)
	b := emptyBackend(t)
	smallDisk(t, filepath.Join(b.dir, "images"), "200k")
	_, err := b.Setup(t.Context(), SetupOptions{Kernel: image, Modules: modules, RootFS: root})
	if !errors.Is(err, unix.ENOSPC) && !strings.Contains(fmt.Sprint(err), "No space left") {
		t.Errorf("setup: %v", err)
	}
	left, err := os.ReadDir(filepath.Join(b.dir, "images"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if _, _, err := b.prepared(); err == nil {
		t.Error("the setup counts")
	}
}

// TestAFullHostCostsTheWriteOnly has a disk that is larger than what the host has free.
func TestAFullHostCostsTheWriteOnly(t *testing.T) {
	testneed.All(t, "TestAFullDiskCostsTheSnapshotOnly has a full disk, too")
	b := testBackend(t)
	smallDisk(t, filepath.Join(b.dir, "sandboxes"), "40m")
	sb := open(t, b, sandbox.Spec{})
	v, err := sb.Run(t.Context(), sandbox.Command{Shell: "dd if=/dev/zero of=f bs=1M count=100 conv=fsync"})
	if err != nil || v.OK() {
		t.Errorf("a write: %v, %v", v, err)
	}
	if got := cell(t, sb, "1 + 1"); got != "2" {
		t.Errorf("a cell: %s", got)
	}
}

// TestAGuestThatNeverAnswers has a kernel whose initramfs ends without our guest.
func TestAGuestThatNeverAnswers(t *testing.T) {
	testneed.All(t, "waits for a deadline; TestAStoppedMonitorIsNotWaitedFor has a monitor that does not answer")
	silent := filepath.Join(t.TempDir(), "guest")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", silent, "./testdata/silent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b := testBackend(t, func(o *Options) { o.Guest, o.NoTemplates = silent, true })
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	if _, err := sandbox.Open(ctx, b, sandbox.Spec{}); v1.CodeOf(err) != v1.CodeCancelled {
		t.Errorf("start: %v", err)
	}
	images, _ := filepath.Glob(filepath.Join(b.dir, "images", "initramfs-*"+b.guest.Hash[:16]+"*"))
	for _, i := range images {
		_ = os.Remove(i) // only this test uses it
	}
}
