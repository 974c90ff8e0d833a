//go:build linux

package gvisor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/sandbox"
)

// sharedDir is a directory that may be mounted.
func sharedDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "recluse-mount-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestARestoreJudgesItsMountsAgain(t *testing.T) {
	b := testBackend(t)
	top := sharedDir(t)
	dir, aside, other := filepath.Join(top, "dir"), filepath.Join(top, "aside"), filepath.Join(top, "other")
	if err := errors.Join(os.Mkdir(dir, 0o777), os.Mkdir(other, 0o777), os.WriteFile(filepath.Join(dir, "data"), []byte("42"), 0o644)); err != nil {
		t.Fatal(err)
	}
	sb := open(t, b, sandbox.Spec{Mounts: []sandbox.Mount{{Host: dir, Path: "/data"}}})
	snap, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.DeleteSnapshot(t.Context(), snap.ID)
	before, err := b.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, aside); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"/etc", other} {
		if err := os.Symlink(target, dir); err != nil {
			t.Fatal(err)
		}
		_, err := sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{})
		wantCode(t, err, v1.CodeMountRefused)
		forks, err := sb.Fork(t.Context(), 1)
		wantCode(t, err, v1.CodeMountRefused)
		if after, err := b.List(t.Context()); err != nil || len(after) != len(before) || len(forks) != 0 {
			t.Errorf("something was restored: %v %v", after, err)
		}
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(aside, dir); err != nil {
		t.Fatal(err)
	}
	got, err := sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	if v, err := got.Run(t.Context(), sandbox.Command{Shell: "cat /data/data"}); err != nil || v.Stdout.String() != "42" {
		t.Errorf("after the directory was restored: %v %v", v, err)
	}
}

func TestARestoreJudgesItsRootAgain(t *testing.T) {
	b := testBackend(t)
	root := bareRoot(t)
	sb := open(t, b, sandbox.Spec{RootFS: root})
	snap, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.DeleteSnapshot(t.Context(), snap.ID)
	app := filepath.Join(root, "app")
	if err := errors.Join(os.Rename(app, app+"-aside"), os.Symlink("/etc", app)); err != nil {
		t.Fatal(err)
	}
	_, err = sandbox.Restore(t.Context(), b, snap, sandbox.RestoreOptions{})
	wantCode(t, err, v1.CodeMountRefused)
}

// TestASwapDuringTheStartIsNoticed uses an engine that replaces the directory by a link at the last moment.
func TestASwapDuringTheStartIsNoticed(t *testing.T) {
	b := backendIn(t, t.TempDir())
	b.opts.NoTemplates = true
	dir := filepath.Join(sharedDir(t), "dir")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\nfor a; do if [ \"$a\" = run ]; then mv " + dir + " " + dir + "-aside; ln -s /etc " + dir + "; fi; done\nexec " + b.engine.Path + " \"$@\"\n"
	b.engine.Path = filepath.Join(t.TempDir(), "engine")
	if err := os.WriteFile(b.engine.Path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := sandbox.Open(t.Context(), b, sandbox.Spec{Mounts: []sandbox.Mount{{Host: dir, Path: "/data"}}})
	wantCode(t, err, v1.CodeMountRefused)
	if !strings.Contains(err.Error(), "was replaced") {
		t.Errorf("refused for another reason: %v", err)
	}
	for _, d := range []string{"sandboxes", "engine"} {
		if left := entriesOf(filepath.Join(b.dir, d)); len(left) != 0 {
			t.Errorf("left in %s: %v", d, left)
		}
	}
}

func TestOurOwnDirectoriesStayOutside(t *testing.T) {
	dir := sharedDir(t)
	b := backendIn(t, dir)
	if err := os.MkdirAll(filepath.Join(dir, "cache", "sub", "usr"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{dir, filepath.Join(dir, "data"), filepath.Join(dir, "data", Name, "sandboxes"), filepath.Join(dir, "cache"), filepath.Join(dir, "cache", "sub")} {
		_, err := sandbox.Open(t.Context(), b, sandbox.Spec{Mounts: []sandbox.Mount{{Host: bad, Path: "/data"}}})
		wantCode(t, err, v1.CodeMountRefused)
		_, err = sandbox.Open(t.Context(), b, sandbox.Spec{RootFS: bad})
		wantCode(t, err, v1.CodeRootFS)
		if !strings.Contains(err.Error(), "recluse's") {
			t.Errorf("%s: refused for another reason: %v", bad, err)
		}
	}
}

func TestOlderProgramsComeFromTheBackendsOwnCache(t *testing.T) {
	engine, _, err := testbin.Programs()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	first := backendIn(t, dir)
	first.opts.NoTemplates = true
	sb := open(t, first, sandbox.Spec{})
	id := sb.ID()
	sb.Detach()
	later := func() *Backend {
		b := backendIn(t, dir)
		// As after an upgrade: the same programs with other hashes.
		b.engine.Hash, b.guest.Hash = strings.Repeat("1", 64), strings.Repeat("2", 64)
		return b
	}
	b := later()
	kept, away := filepath.Join(dir, "cache", "bin", engine.Hash), filepath.Join(dir, "away")
	if err := os.Rename(kept, away); err != nil {
		t.Fatal(err)
	}
	_, err = sandbox.Attach(t.Context(), b, id)
	wantCode(t, err, v1.CodeSnapshotVersion)
	if err := os.Rename(away, kept); err != nil {
		t.Fatal(err)
	}
	again, err := sandbox.Attach(t.Context(), b, id)
	if err != nil {
		t.Fatal(err)
	}
	forks, err := again.Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range append(forks, again) {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}
