package backendkit

import (
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func TestSharedFilesAreLinkedOrCopied(t *testing.T) {
	dir := t.TempDir()
	first, second := SharedFiles{filepath.Join(dir, "first")}, SharedFiles{filepath.Join(dir, "second")}
	if err := first.Create(SharedFiles{}); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"open": 0o644, "closed": 0o600} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(name), mode); err != nil {
			t.Fatal(err)
		}
		if err := first.Share(t.Context(), file, "a/b/"+name); err != nil {
			t.Fatal(err)
		}
		if err := first.Share(t.Context(), file, "a/b/"+name); v1.CodeOf(err) != v1.CodeFileExists {
			t.Errorf("shared a second time: %v", err)
		}
		got, err := os.Stat(filepath.Join(first.Dir, "a", "b", name))
		if err != nil || got.Mode().Perm() != 0o644 {
			t.Fatalf("%v, %v", got, err)
		}
		was, err := os.Stat(file)
		if err != nil || os.SameFile(was, got) != (name == "open") {
			t.Errorf("%s is the same file: %v, %v", name, os.SameFile(was, got), err)
		}
	}
	if err := second.Create(first); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(filepath.Join(second.Dir, "a", "b"))
	if err != nil || len(left) != 2 {
		t.Errorf("%v, %v", left, err)
	}
	if err := (SharedFiles{filepath.Join(dir, "third")}).Create(SharedFiles{filepath.Join(dir, "none")}); err != nil {
		t.Error(err)
	}
	for file, code := range map[string]v1.Code{
		dir: v1.CodeFileNotRegular, filepath.Join(dir, "none"): v1.CodeFileNotFound, "/dev/null": v1.CodeFileNotRegular,
	} {
		if err := first.Share(t.Context(), file, "x"); v1.CodeOf(err) != code {
			t.Errorf("%s: %v", file, err)
		}
	}
	if err := first.Share(t.Context(), filepath.Join(dir, "open"), "../x"); v1.CodeOf(err) != v1.CodePathInvalid {
		t.Errorf("a name that leaves: %v", err)
	}
}
