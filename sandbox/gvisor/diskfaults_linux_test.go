//go:build linux

package gvisor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// TestASnapshotSurvivesAPowerFailure records what is written to the disk before the snapshot gets its name, and replays
// a power failure at that moment: files that were not written are empty.
func TestASnapshotSurvivesAPowerFailure(t *testing.T) {
	b := backendIn(t, t.TempDir())
	sb := open(t, b, sandbox.Spec{})
	sh(t, sb, "head -c 30000000 /dev/urandom > f; md5sum < f > sum")
	var synced, torn []string
	real := func(path string) error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		return errors.Join(f.Sync(), f.Close())
	}
	b.snaps.Sync = func(path string) error {
		synced = append(synced, path)
		if path != filepath.Join(b.dir, "snapshots") {
			return real(path)
		}
		// The rename is done. Whatever was not written before is lost.
		dirs, err := filepath.Glob(filepath.Join(path, "p*"))
		if err != nil || len(dirs) != 1 {
			t.Fatal(dirs, err)
		}
		temp := synced[0]
		return filepath.WalkDir(dirs[0], func(name string, d fs.DirEntry, err error) error {
			was := filepath.Join(temp, strings.TrimPrefix(name, dirs[0]))
			if err != nil || !d.Type().IsRegular() || slices.Contains(synced, was) {
				return err
			}
			torn = append(torn, name)
			return os.Truncate(name, 0)
		})
	}
	snap, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b.snaps.Sync = nil
	if len(torn) > 0 {
		t.Errorf("not written before the rename: %q", torn)
	}
	if len(synced) < 5 || synced[len(synced)-1] != filepath.Join(b.dir, "snapshots") {
		t.Errorf("written: %q", synced)
	}
	restored, err := sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sh(t, restored, "md5sum < f | diff - sum")
	_ = restored.Close()
	// A file that is torn nevertheless, by a disk that lies, is an error and never another memory.
	files, err := filepath.Glob(filepath.Join(b.snaps.Path(snap.ID), checkpointDir, "*.img"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(file, info.Size()/2); err != nil {
			t.Fatal(err)
		}
		if sb, err := sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{}); err == nil {
			t.Errorf("restored although %s is torn", filepath.Base(file))
			_ = sb.Close()
		} else if v1.CodeOf(err) == "" {
			t.Errorf("%s: %v", filepath.Base(file), err)
		}
	}
	if err := b.DeleteSnapshot(t.Context(), snap.ID); err != nil {
		t.Error(err)
	}
}

// TestTheHostRunsOutOfSpaceDuringASnapshot has no room for a second copy of the disk. The sandbox continues with its
// files, and nothing is left of the snapshot.
func TestTheHostRunsOutOfSpaceDuringASnapshot(t *testing.T) {
	testneed.All(t, "it fills a disk")
	testneed.Root(t, "mounting an image")
	dir := t.TempDir()
	image, top := filepath.Join(dir, "image"), filepath.Join(dir, "top")
	for _, args := range [][]string{
		{"truncate", "-s", "1G", image}, {"mkfs.ext4", "-q", image}, {"mkdir", top}, {"mount", "-o", "loop", image, top},
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
	b := backendIn(t, top)
	b.opts.NoTemplates = true
	sb := open(t, b, sandbox.Spec{})
	cell(t, sb, "x = 7")
	sh(t, sb, "head -c 600000000 /dev/urandom > f; md5sum < f > sum")
	for range 2 {
		_, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{})
		if v1.CodeOf(err) != v1.CodeDiskFull {
			t.Errorf("a snapshot: %v", err)
		}
		if left := entriesOf(filepath.Join(b.dir, "snapshots")); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		cell(t, sb, "assert x == 7; open('g', 'wb').write(b'fine')")
	}
	sh(t, sb, "md5sum < f | diff - sum; rm f")
	snap, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{})
	if err != nil {
		t.Fatal("after files were removed:", err)
	}
	if err := b.DeleteSnapshot(t.Context(), snap.ID); err != nil {
		t.Error(err)
	}
}

// TestTheGoferIsKilled ends only its own sandbox or nothing: the loss is reported, and nothing is left.
func TestTheGoferIsKilled(t *testing.T) {
	testneed.All(t, "kills of the sandbox's process are tried in every tier")
	b := backendIn(t, t.TempDir())
	b.opts.NoTemplates = true
	sb := open(t, b, sandbox.Spec{})
	sh(t, sb, "echo before > /opt/f")
	snap, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	gofers := processesOf(t, b, "gofer")
	if len(gofers) == 0 {
		t.Fatal("no gofer")
	}
	for _, pid := range gofers {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	// Files on the disk are in the sandbox's own process. Others may fail, but only as an error of the command or as
	// the reported loss of the sandbox.
	v, err := sb.Run(t.Context(), sandbox.Command{Shell: "cat /opt/f; cat /usr/bin/env | wc -c"})
	t.Log(v, err)
	if err != nil && v1.CodeOf(err) == "" {
		t.Errorf("an untyped error: %v", err)
	}
	if err := sb.Close(); err != nil && v1.CodeOf(err) == "" {
		t.Errorf("close: %v", err)
	}
	testneed.Await(t, "nothing is left", func() bool {
		return len(processesOf(t, b, "boot", "gofer")) == 0 && len(entriesOf(filepath.Join(b.dir, "sandboxes"))) == 0
	})
	restored, err := sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := sh(t, restored, "cat /opt/f"); got != "before" {
		t.Errorf("%q", got)
	}
	_ = restored.Close()
	if err := b.DeleteSnapshot(context.WithoutCancel(t.Context()), snap.ID); err != nil {
		t.Error(err)
	}
}
