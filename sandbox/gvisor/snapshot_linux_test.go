//go:build linux

package gvisor

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestASnapshotWithStopHoldsTheLastState(t *testing.T) {
	b := testBackend(t)
	dir := sharedDir(t)
	sb := open(t, b, sandbox.Spec{Mounts: []sandbox.Mount{{Host: dir, Path: "/mnt/out", Writable: true}}})
	// The code reports every step to the host until its end. The file is closed each time, because otherwise the
	// snapshot would depend on it.
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
	if _, err := b.load(sb.ID()); v1.CodeOf(err) != v1.CodeNotFound {
		t.Errorf("the sandbox was not stopped: %v", err)
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
			t.Fatalf("step %d was followed by %d: the copy has an earlier state", last, n)
		}
		last = n
	}
}

// onSmallDisk returns a sandbox whose snapshots do not fit on the disk of its backend.
func onSmallDisk(t *testing.T) (*Backend, *sandbox.Sandbox) {
	t.Helper()
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
	return b, sb
}

func TestASandboxGoesOnWhenItsLastSnapshotFails(t *testing.T) {
	b, sb := onSmallDisk(t)
	_, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{Stop: true})
	wantCode(t, err, v1.CodeDiskFull)
	if v := cell(t, sb, "x, len(data)"); v.Result.Text() != "(7, 94371840)" {
		t.Errorf("the sandbox was harmed: %v", v)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Snapshot(ctx, sb.ID(), sandbox.SnapshotOptions{Stop: true}); err == nil {
		t.Fatal("a cancelled snapshot succeeded")
	}
	if v := cell(t, sb, "x"); v.Result.Text() != "7" {
		t.Errorf("the sandbox was harmed: %v", v)
	}
}

func TestASnapshotIsGivenAlsoWhenItsSandboxCannotBeStopped(t *testing.T) {
	testneed.Root(t, "mounting what blocks the end")
	b := testBackend(t)
	sb := open(t, b, sandbox.Spec{})
	blocked := b.sandboxes.Path(sb.ID(), "blocked")
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

func TestSnapshotSurvivesAndIsChecked(t *testing.T) {
	b := testBackend(t)
	sb := open(t, b, sandbox.Spec{})
	cell(t, sb, "import json; x = 41")
	take := func(t *testing.T) *sandbox.Snapshot {
		t.Helper()
		snap, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := b.DeleteSnapshot(context.Background(), snap.ID); err != nil {
				t.Error(err)
			}
		})
		return snap
	}
	change := func(t *testing.T, snap *sandbox.Snapshot, f func(*manifest)) {
		t.Helper()
		path := filepath.Join(b.snaps.Path(snap.ID), backendkit.ManifestFile)
		m := &manifest{}
		if err := atomicfile.ReadJSON(path, m); err != nil {
			t.Fatal(err)
		}
		f(m)
		if err := atomicfile.WriteJSON(path, m); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(t *testing.T, snap *sandbox.Snapshot, code v1.Code) (err error) {
		t.Helper()
		toldInTime(t, func() {
			_, err = sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{})
			wantCode(t, err, code)
		})
		return err
	}
	t.Run("it holds interpreter state", func(t *testing.T) {
		snap := take(t)
		cell(t, sb, "x = 0")
		got, err := sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{Env: map[string]string{"COLOUR": "green"}})
		if err != nil {
			t.Fatal(err)
		}
		defer got.Close()
		if v := cell(t, got, "import os; (x, os.environ['COLOUR'])"); v.Result.Text() != "(41, 'green')" {
			t.Errorf("%s %+v", v.Result.Text(), v.Error)
		}
		if snap.Size == 0 || snap.Parent != sb.ID() {
			t.Errorf("%+v", snap)
		}
		cell(t, sb, "x = 41")
	})
	t.Run("a changed file of the host is named", func(t *testing.T) {
		snap := take(t)
		var held string
		change(t, snap, func(m *manifest) {
			for i, h := range m.Held {
				if held == "" && strings.Contains(h.Path, "python3") {
					m.Held[i].Mtime--
					held = h.Path
				}
			}
		})
		if held == "" {
			t.Fatal("the interpreter is not among the files that the snapshot holds")
		}
		if err := refused(t, snap, v1.CodeSnapshotStale); !strings.Contains(err.Error(), held) {
			t.Errorf("the error does not name %s: %v", held, err)
		}
	})
	t.Run("a damaged one", func(t *testing.T) {
		snap := take(t)
		files, err := filepath.Glob(filepath.Join(b.snaps.Path(snap.ID), checkpointDir, "*"))
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		for _, f := range files {
			data, err := os.ReadFile(f)
			if err != nil || len(data) == 0 {
				continue
			}
			data[len(data)/2] ^= 0xff
			if err := os.WriteFile(f, data, 0o600); err != nil {
				t.Fatal(err)
			}
			_ = refused(t, snap, v1.CodeSnapshotCorrupt)
			data[len(data)/2] ^= 0xff
			if err := os.WriteFile(f, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	})
	t.Run("one with a broken manifest", func(t *testing.T) {
		snap := take(t)
		if err := os.WriteFile(filepath.Join(b.snaps.Path(snap.ID), backendkit.ManifestFile), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		_ = refused(t, snap, v1.CodeSnapshotCorrupt)
	})
	t.Run("one of another version", func(t *testing.T) {
		snap := take(t)
		change(t, snap, func(m *manifest) { m.Format = 99 })
		_ = refused(t, snap, v1.CodeSnapshotVersion)
	})
	t.Run("one whose engine is gone", func(t *testing.T) {
		snap := take(t)
		change(t, snap, func(m *manifest) { m.Record.Engine = strings.Repeat("0", 64) })
		_ = refused(t, snap, v1.CodeSnapshotVersion)
	})
	t.Run("one that does not exist", func(t *testing.T) {
		for _, id := range []string{"p0000", "../../etc", ""} {
			_ = refused(t, &sandbox.Snapshot{ID: id}, v1.CodeNotFound)
		}
	})
	if v := cell(t, sb, "x"); v.Result.Text() != "41" {
		t.Errorf("the original was harmed: %v", v)
	}
}

func TestSnapshotOnAFullDisk(t *testing.T) {
	b, sb := onSmallDisk(t)
	toldInTime(t, func() {
		_, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{})
		wantCode(t, err, v1.CodeDiskFull)
	})
	if entries, err := os.ReadDir(filepath.Join(b.dir, "snapshots")); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v %v", entries, err)
	}
	if v := cell(t, sb, "x, len(data)"); v.Result.Text() != "(7, 94371840)" {
		t.Errorf("the sandbox was harmed: %v %v", v, v.Result.Text())
	}
}

func TestATemplateIsMadeAgainWhenTheHostChanged(t *testing.T) {
	b := backendIn(t, t.TempDir())
	open(t, b, sandbox.Spec{})
	find := func() string {
		dirs, err := filepath.Glob(filepath.Join(b.dir, "templates", "*", backendkit.ManifestFile))
		if err != nil || len(dirs) != 1 {
			t.Fatal(dirs, err)
		}
		return dirs[0]
	}
	m := &manifest{}
	if err := atomicfile.ReadJSON(find(), m); err != nil {
		t.Fatal(err)
	}
	was := m.Snapshot.Created
	m.Held[0].Mtime++
	if err := atomicfile.WriteJSON(find(), m); err != nil {
		t.Fatal(err)
	}
	sb := open(t, b, sandbox.Spec{})
	if v := cell(t, sb, "1+1"); v.Result.Text() != "2" {
		t.Fatal(v)
	}
	if err := atomicfile.ReadJSON(find(), m); err != nil || !m.Snapshot.Created.After(was) {
		t.Fatalf("the stale template was used: %v", err)
	}
}
