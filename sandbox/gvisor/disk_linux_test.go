//go:build linux

package gvisor

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// sh runs a shell command, which must succeed, and returns its output without spaces around it.
func sh(t *testing.T, sb *sandbox.Sandbox, script string) string {
	t.Helper()
	v, err := sb.Run(t.Context(), sandbox.Command{Shell: script, RunOptions: sandbox.RunOptions{Timeout: 5 * time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	if !v.OK() {
		t.Fatalf("%s: %s: %s", script, v.Ended, v.Stderr.String())
	}
	return strings.TrimSpace(v.Stdout.String())
}

// fork returns a copy of a sandbox, and how long it took.
func fork(t *testing.T, b *Backend, sb *sandbox.Sandbox) (*sandbox.Sandbox, time.Duration) {
	t.Helper()
	began := time.Now()
	snap, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	taken := time.Since(began)
	forked, err := sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{})
	took := time.Since(began)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = forked.Close() })
	if err := b.DeleteSnapshot(t.Context(), snap.ID); err != nil {
		t.Error(err)
	}
	t.Logf("snapshot %v, restore %v", taken, took-taken)
	return forked, took
}

const meminfoUsed = `awk '/MemTotal/ {t=$2} /MemFree/ {f=$2} END {print t-f}' /proc/meminfo`

// TestFilesOnDiskAreNotMemory writes more than the memory limit, and lets a copy use its memory.
func TestFilesOnDiskAreNotMemory(t *testing.T) {
	testneed.Parallel(t)
	b := testBackend(t)
	sb := open(t, b, sandbox.Spec{Limits: sandbox.Limits{Memory: 192 << 20}})
	sum := sh(t, sb, "head -c 250000000 /dev/urandom > /opt/large; md5sum < /opt/large")
	copied, _ := fork(t, b, sb)
	for name, x := range map[string]*sandbox.Sandbox{"the original": sb, "the copy": copied} {
		if got := sh(t, x, "md5sum < /opt/large"); got != sum {
			t.Errorf("%s: other content of the file", name)
		}
		if used := atoi(t, sh(t, x, meminfoUsed)); used > 100<<10 {
			t.Errorf("%s: %d KiB are used after a file of 250 MB", name, used)
		}
		cell(t, x, "data = bytearray(80_000_000); del data")
		// The pages of a deleted file are not counted either.
		sh(t, x, "rm /opt/large")
		if used := atoi(t, sh(t, x, meminfoUsed)); used > 100<<10 {
			t.Errorf("%s: %d KiB are used after the file was deleted", name, used)
		}
	}
}

// TestCopiesHaveTheirOwnDisk forks a sandbox with a small disk, which is part of the pages, and a large one, which has
// a file of its own.
func TestCopiesHaveTheirOwnDisk(t *testing.T) {
	testneed.Parallel(t)
	b := testBackend(t)
	for _, size := range []string{"1000", "50000000"} {
		sb := open(t, b, sandbox.Spec{})
		sh(t, sb, "head -c "+size+" /dev/urandom > f; echo first > /opt/x; rm -r /usr/local/etc; echo 10.0.0.1 here >> /etc/hosts")
		sum := sh(t, sb, "md5sum < f")
		one, _ := fork(t, b, sb)
		sh(t, sb, "echo second > /opt/x; head -c "+size+" /dev/zero > f")
		two, _ := fork(t, b, one)
		sh(t, one, "echo third > /opt/x; head -c "+size+" /dev/zero > f")
		if got := sh(t, two, "cat /opt/x; md5sum < f; grep -c here /etc/hosts; ls -d /usr/local/etc 2>&1 || true"); !strings.HasPrefix(got, "first\n"+sum+"\n1\n") || !strings.Contains(got, "No such file") {
			t.Errorf("with %s bytes the copy of the copy has %q", size, got)
		}
		if got := sh(t, sb, "cat /opt/x"); got != "second" {
			t.Errorf("the original has %q", got)
		}
	}
	if _, err := os.Stat("/opt/x"); err == nil {
		t.Error("the file is on the host")
	}
}

// TestTheDiskIsLimited tries both limits, and that the space comes back.
func TestTheDiskIsLimited(t *testing.T) {
	testneed.Parallel(t)
	b := testBackend(t)
	sb := open(t, b, sandbox.Spec{Limits: sandbox.Limits{Memory: 128 << 20, Disk: 64 << 20}})
	if got := sh(t, sb, "df -B1 --output=size / | tail -1"); atoi(t, got) != 64<<20 {
		t.Errorf("df shows %s bytes", got)
	}
	for range 2 {
		got := sh(t, sb, "head -c 50000000 /dev/zero > /var/tmp/a; head -c 50000000 /dev/zero > b && exit 1; rm /var/tmp/a b; echo ended")
		if got != "ended" {
			t.Error(got)
		}
		got = sh(t, sb, `mkdir /tmp/many; cd /tmp/many; i=0; while [ $i -lt 100000 ] && : > $i; do i=$((i+1)); done 2>/dev/null; ls | wc -l; rm -r /tmp/many`)
		if n := atoi(t, got); n < 1000 || n > 1<<14 {
			t.Errorf("%d files with 128 MiB of memory", n)
		}
	}
	sh(t, sb, "echo fine > f; cat f")
}

// TestMoreDiskThanTheHostHas is refused; the default is not, because most sandboxes write little.
func TestMoreDiskThanTheHostHas(t *testing.T) {
	b := testBackend(t)
	_, err := sandbox.Open(t.Context(), b, sandbox.Spec{Limits: sandbox.Limits{Disk: 1 << 50}})
	if v1.CodeOf(err) != v1.CodeDiskFull {
		t.Errorf("1 PiB: %v", err)
	}
}

// TestACancelledSnapshotOfALargeDisk leaves no process and no file, and the sandbox continues.
func TestACancelledSnapshotOfALargeDisk(t *testing.T) {
	testneed.All(t, "it writes 600 MB")
	b := backendIn(t, t.TempDir())
	b.opts.NoTemplates = true
	sb := open(t, b, sandbox.Spec{})
	sh(t, sb, "head -c 600000000 /dev/urandom > f")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	made := filepath.Join(b.dir, "snapshots", backendkit.NewPrefix+"*")
	go func() {
		_ = testneed.Eventually(func() bool {
			found, _ := filepath.Glob(filepath.Join(made, checkpointDir, diskFile))
			return len(found) > 0
		})
		cancel()
	}()
	if _, err := sb.Snapshot(ctx, sandbox.SnapshotOptions{}); v1.CodeOf(err) != v1.CodeCancelled {
		t.Fatalf("cancelled: %v", err)
	}
	if found, _ := filepath.Glob(made); len(found) > 0 {
		t.Errorf("left: %v", found)
	}
	testneed.Await(t, "the engine's process ends", func() bool { return len(processesOf(t, b, "checkpointgofer")) == 0 })
	sh(t, sb, "echo fine")
	testneed.Await(t, "another snapshot", func() bool {
		snap, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{})
		return err == nil && b.DeleteSnapshot(t.Context(), snap.ID) == nil
	})
}

// TestADiskEndsWithItsSandbox kills everything of a sandbox: the space is free at once.
func TestADiskEndsWithItsSandbox(t *testing.T) {
	testneed.All(t, "it needs a disk of its own")
	b := onXFS(t, "1G")
	b.opts.NoTemplates = true
	before := used(t, b.dir)
	sb := open(t, b, sandbox.Spec{})
	sh(t, sb, "head -c 200000000 /dev/urandom > f; sync")
	flush(t, b.dir)
	if more := used(t, b.dir) - before; more < 190_000_000 {
		t.Errorf("a file of 200 MB takes %d bytes", more)
	}
	for _, pid := range processesOf(t, b, "boot", "gofer") {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	testneed.Await(t, "the space is free", func() bool { return used(t, b.dir)-before < 20<<20 })
}

// processesOf returns the engine's processes of a backend that run one of the commands.
func processesOf(t *testing.T, b *Backend, commands ...string) []int {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, name := range names {
		line, _ := os.ReadFile(name) // it may have ended
		args := strings.Split(string(line), "\x00")
		if !slices.Contains(args, "--root="+filepath.Join(b.dir, "engine")) {
			continue
		}
		if slices.ContainsFunc(commands, func(c string) bool { return slices.Contains(args, c) }) {
			pids = append(pids, atoi(t, filepath.Base(filepath.Dir(name))))
		}
	}
	return pids
}

// onXFS returns a backend whose files are on a file system that can share blocks.
func onXFS(t *testing.T, size string) *Backend {
	t.Helper()
	testneed.Root(t, "mounting an image")
	if _, err := exec.LookPath("mkfs.xfs"); err != nil {
		testneed.Lacking(t, err)
	}
	dir := t.TempDir()
	image, top := filepath.Join(dir, "image"), filepath.Join(dir, "top")
	for _, args := range [][]string{
		{"truncate", "-s", size, image}, {"mkfs.xfs", "-q", image}, {"mkdir", top}, {"mount", "-o", "loop", image, top},
	} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			testneed.Lacking(t, args[0], err, string(out))
		}
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(top, 0); err != nil {
			t.Error(err)
		}
	})
	return backendIn(t, top)
}

// TestTheHostRunsOutOfSpace fills the disk of the host from inside. Only the writer fails.
func TestTheHostRunsOutOfSpace(t *testing.T) {
	testneed.All(t, "it fills a disk")
	b := onXFS(t, "512M")
	sb := open(t, b, sandbox.Spec{})
	cell(t, sb, "x = 7")
	if got := sh(t, sb, "head -c 1000000000 /dev/zero > f && exit 1; rm f; echo ended"); got != "ended" {
		t.Error(got)
	}
	cell(t, sb, "assert x == 7; open('g', 'wb').write(b'fine')")
}

// TestForksWithReflink forks a sandbox with 5 GB of files on a file system that can share blocks. The copy must not take
// the same space again.
func TestForksWithReflink(t *testing.T) {
	testneed.All(t, "it writes 5 GB")
	b := onXFS(t, "16G")
	full := open(t, b, sandbox.Spec{Limits: sandbox.Limits{Disk: 8 << 30}})
	sh(t, full, "for i in 1 2 3 4 5; do head -c 1000000000 /dev/urandom > $i; done; cat 5 | md5sum")
	flush(t, b.dir)
	before := used(t, b.dir)
	copied, _ := fork(t, b, full)
	if more := used(t, b.dir) - before; more > 500<<20 {
		t.Errorf("a copy takes %d MB", more>>20)
	}
	if sum := sh(t, copied, "md5sum < 5"); sum != sh(t, full, "md5sum < 5") {
		t.Error("the copy has another content")
	}
}

// TestASnapshotOfAFullDisk copies 2 GB where blocks cannot be shared.
func TestASnapshotOfAFullDisk(t *testing.T) {
	testneed.All(t, "it writes 6 GB")
	b := testBackend(t)
	sb := open(t, b, sandbox.Spec{})
	sum := sh(t, sb, "head -c 2000000000 /dev/urandom > f; md5sum < f")
	saved := make(chan struct{})
	var snap *sandbox.Snapshot
	var err error
	go func() {
		defer close(saved)
		snap, err = sb.Snapshot(t.Context(), sandbox.SnapshotOptions{})
	}()
	seen := map[int64]bool{}
	for over := false; !over; {
		select {
		case <-saved:
			over = true
		case <-time.After(10 * time.Millisecond):
			if done, total := b.Saving(sb.ID()); total > 0 {
				seen[done] = true
				if done > total || total < 2000000000 || total > 2200000000 {
					t.Errorf("copied %d of %d bytes", done, total)
				}
			}
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(seen) < 3 {
		t.Errorf("the progress was %v", seen)
	}
	if done, total := b.Saving(sb.ID()); done != 0 || total != 0 {
		t.Errorf("after it: %d of %d bytes", done, total)
	}
	defer b.DeleteSnapshot(context.Background(), snap.ID)
	if snap.Size < 2000000000 || snap.Size > 2200000000 {
		t.Errorf("the snapshot has %d bytes", snap.Size)
	}
	sh(t, sb, "rm f")
	restored, err := sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer restored.Close()
	if got := sh(t, restored, "md5sum < f"); got != sum {
		t.Errorf("the restored file has the sum %s, want %s", got, sum)
	}
}

func flush(t *testing.T, dir string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "sync", "-f", dir).CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
}

// used returns the used bytes of the file system of dir.
func used(t *testing.T, dir string) int64 {
	t.Helper()
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize
}
