//go:build linux

package gvisor

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestASnapshotWithStopHoldsTheLastState(t *testing.T) {
	b := testBackend(t)
	dir := sharedDir(t)
	sb := open(t, b, sandbox.Spec{Mounts: []sandbox.Mount{{Host: dir, Path: "/mnt/out", Writable: true}}})
	// It tells the host every step, until its very end. The file is closed each time, or the snapshot would need it as it was.
	cell(t, sb, `
import threading
n = 0
def count():
    global n
    while True:
        n += 1
        with open("/mnt/out/n", "a") as f: f.write(f"{n}\n")
threading.Thread(target=count, daemon=True).start()
while n < 100: pass`)
	snap, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{Stop: true})
	if err != nil {
		t.Fatal(err)
	}
	defer b.DeleteSnapshot(context.Background(), snap.ID)
	if _, err := b.load(sb.ID()); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("it was not stopped: %v", err)
	}
	got, err := sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	cell(t, got, "now = n\nwhile n < now + 10: pass")
	text, err := os.ReadFile(filepath.Join(dir, "n"))
	if err != nil {
		t.Fatal(err)
	}
	last := 0
	for line := range strings.Lines(string(text)) {
		n := atoi(t, strings.TrimSpace(line))
		if n != last+1 {
			t.Fatalf("after step %d came %d: the copy is one of an earlier state", last, n)
		}
		last = n
	}
}

func TestASandboxGoesOnWhenItsLastSnapshotFails(t *testing.T) {
	testneed.Root(t, "mounting a small disk")
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	b := backendIn(t, dir)
	b.opts.NoTemplates = true
	sb := open(t, b, sandbox.Spec{})
	cell(t, sb, "import os; data = os.urandom(90 << 20); x = 7")
	_, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{Stop: true})
	wantCode(t, err, sandbox.CodeDiskFull)
	if v := cell(t, sb, "x, len(data)"); v.Result.Text() != "(7, 94371840)" {
		t.Errorf("the sandbox was harmed: %v", v)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Snapshot(ctx, sb.ID(), sandbox.SnapshotOptions{Stop: true}); err == nil {
		t.Fatal("a snapshot that nobody waits for")
	}
	if v := cell(t, sb, "x"); v.Result.Text() != "7" {
		t.Errorf("the sandbox was harmed: %v", v)
	}
}

func TestASnapshotIsGivenAlsoWhenItsSandboxCannotBeStopped(t *testing.T) {
	testneed.Root(t, "mounting what blocks the end")
	b := testBackend(t)
	sb := open(t, b, sandbox.Spec{})
	blocked := filepath.Join(b.sandboxDir(sb.ID()), "blocked")
	if err := os.Mkdir(blocked, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", blocked, "tmpfs", 0, "size=4k"); err != nil {
		t.Fatal(err)
	}
	snap, err := b.Snapshot(t.Context(), sb.ID(), sandbox.SnapshotOptions{Stop: true})
	if uerr := syscall.Unmount(blocked, 0); uerr != nil {
		t.Fatal(uerr)
	}
	if err == nil || snap == nil {
		t.Fatalf("%v %v", snap, err)
	}
	if err := b.DeleteSnapshot(t.Context(), snap.ID); err != nil {
		t.Error(err)
	}
	if err := b.Stop(t.Context(), sb.ID()); err != nil {
		t.Error(err)
	}
}

func TestAttachingLetsAPausedSandboxGoOn(t *testing.T) {
	b := testBackend(t)
	sb := open(t, b, sandbox.Spec{})
	cell(t, sb, "x = 5")
	sb.Detach()
	if err := b.driver(b.engine.Path, false).pause(t.Context(), sb.ID()); err != nil {
		t.Fatal(err)
	}
	again, err := sandbox.Attach(t.Context(), b, sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if v := cell(t, again, "x"); v.Result.Text() != "5" {
		t.Error(v)
	}
}
