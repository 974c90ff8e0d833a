package dockertest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPodmansServiceLeavesNothing(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()) // its name is too long for Podman
	e, err := StartPodman(t.Context())
	if errors.Is(err, ErrMissing) && os.Getenv("CI") != "true" {
		t.Skip("SKIPPED: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	socket := strings.TrimPrefix(e.Host, "unix://")
	if _, err := os.Stat(socket); err != nil {
		t.Error(err)
	}
	if err := e.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Dir(socket)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
}

func TestWithoutPodmanItIsMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := StartPodman(t.Context()); !errors.Is(err, ErrMissing) {
		t.Error(err)
	}
}
