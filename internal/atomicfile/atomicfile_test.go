package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestAFileIsReplacedAsAWhole(t *testing.T) {
	for name, write := range map[string]func(string, []byte, fs.FileMode) error{"Write": Write, "WriteVolatile": WriteVolatile} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "file")
			for _, want := range []struct {
				text string
				perm fs.FileMode
			}{{strings.Repeat("long", 1000), 0o600}, {"short", 0o644}} {
				if err := write(path, []byte(want.text), want.perm); err != nil {
					t.Fatal(err)
				}
				got, err := os.ReadFile(path)
				if err != nil || string(got) != want.text {
					t.Errorf("read %.20q, %v", got, err)
				}
				if fi, err := os.Stat(path); err != nil || runtime.GOOS != "windows" && fi.Mode().Perm() != want.perm {
					t.Errorf("%v, %v", fi.Mode(), err)
				}
			}
			if err := write(filepath.Join(dir, "none", "file"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("in a missing directory: %v", err)
			}
			if err := os.Mkdir(filepath.Join(dir, "dir"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := write(filepath.Join(dir, "dir"), nil, 0o600); err == nil {
				t.Error("a directory was replaced")
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
				t.Errorf("files left beside the file: %v, %v", left, err)
			}
		})
	}
}

func TestJSON(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "record.json")
	if err := WriteJSON(path, "text"); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := ReadJSON(path, &got); err != nil || got != "text" {
		t.Errorf("read %q, %v", got, err)
	}
	if err := WriteJSON(path, func() {}); err == nil {
		t.Error("a function was encoded")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("files left beside the record: %v, %v", left, err)
	}
}
