//go:build linux

package gvisor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/filelock"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestFilesOfKilledProgramsAreSwept(t *testing.T) {
	b := backendIn(t, t.TempDir())
	put := func(age time.Duration, elements ...string) string {
		t.Helper()
		dir := filepath.Join(append([]string{b.dir}, elements...)...)
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "memory"), []byte("secret"), 0o600)); err != nil {
			t.Fatal(err)
		}
		aged(t, dir, age)
		return dir
	}
	template := func(age time.Duration, name, engine string) string {
		t.Helper()
		dir := put(0, "templates", name)
		if err := atomicfile.WriteJSON(filepath.Join(dir, backendkit.ManifestFile), &manifest{Manifest: backendkit.Manifest{Format: snapshotFormat}, Record: record{Record: backendkit.Record{Guest: b.guest.Hash}, Engine: engine, Root: "/none"}}); err != nil {
			t.Fatal(err)
		}
		aged(t, dir, age)
		return dir
	}
	cut := put(0, "sandboxes", "s2")
	if err := os.WriteFile(filepath.Join(cut, "sandbox.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	aged(t, cut, 2*sweepAge)
	writing := put(2*sweepAge, "snapshots", ".new-writing")
	lock, err := filelock.TryDir(writing)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	other := strings.Repeat("1", 64)
	gone := []string{
		put(2*sweepAge, "snapshots", ".new-1"), put(2*sweepAge, "templates", ".new-1"), put(0, "snapshots", ".old-1"), put(0, "templates", ".old-1"),
		put(2*sweepAge, "sandboxes", "s1"), cut,
		template(2*idleAge, "a1", other), template(templateAge+time.Hour, "a2", b.engine.Hash),
		put(2*idleAge, "roots", hostRootName+"old"), put(0, "roots", ".new-1"),
	}
	used := put(2*idleAge, "roots", hostRootName+"used")
	snapshot := put(0, "snapshots", "p1")
	if err := atomicfile.WriteJSON(filepath.Join(snapshot, backendkit.ManifestFile), &manifest{Manifest: backendkit.Manifest{Format: snapshotFormat}, Record: record{Root: used}}); err != nil {
		t.Fatal(err)
	}
	kept := []string{
		writing, put(0, "snapshots", ".new-2"), snapshot, put(0, "sandboxes", "s3"),
		template(0, "b1", other), template(templateAge-time.Hour, "b2", b.engine.Hash), used, put(0, "roots", hostRootName+"young"),
	}
	open(t, b, sandbox.Spec{})
	b.sweeping.Wait()
	for _, dir := range gone {
		if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s still exists: %v", dir, err)
		}
	}
	for _, dir := range kept {
		if _, err := os.Lstat(dir); err != nil {
			t.Errorf("%s was removed", dir)
		}
	}
}

func TestUseKeepsATemplateAndItsRoot(t *testing.T) {
	b := backendIn(t, t.TempDir())
	open(t, b, sandbox.Spec{})
	b.sweeping.Wait()
	var dirs []string
	for _, pattern := range []string{"templates/[0-9a-f]*", "roots/host-*"} {
		found, err := filepath.Glob(filepath.Join(b.dir, pattern))
		if err != nil || len(found) != 1 {
			t.Fatal(found, err)
		}
		dirs = append(dirs, found[0])
		aged(t, found[0], 2*templateAge)
	}
	b.root = keptRoot{} // as in another program
	open(t, b, sandbox.Spec{})
	b.sweepFiles()
	for _, dir := range dirs {
		if !isDir(dir) {
			t.Errorf("%s was removed", dir)
		}
	}
}

// aged sets the last use of a directory to a time in the past.
func aged(t *testing.T, dir string, age time.Duration) {
	t.Helper()
	at := time.Now().Add(-age)
	if err := os.Chtimes(dir, at, at); err != nil {
		t.Fatal(err)
	}
}
