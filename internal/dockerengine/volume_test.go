package dockerengine

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestTheSignThatAVolumeIsWholeIsItsLastFile(t *testing.T) {
	source := filepath.Join(t.TempDir(), "source")
	v := Volume{Program: "program", Source: source}
	if _, err := v.archive(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a program: %v", err)
	}
	if err := os.WriteFile(source, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := v.archive()
	if err != nil {
		t.Fatal(err)
	}
	archive := tar.NewReader(r)
	for _, want := range []struct {
		name, text string
		mode       int64
	}{{"program", "text", 0o755}, {whole, "", 0o644}} {
		h, err := archive.Next()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil || h.Name != want.name || h.Mode != want.mode || string(text) != want.text {
			t.Errorf("%s (%o) is %q, %v", h.Name, h.Mode, text, err)
		}
	}
	if _, err := archive.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last file: %v", err)
	}
}
