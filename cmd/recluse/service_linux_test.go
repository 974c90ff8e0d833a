package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/recluse-dev/recluse/internal/testneed"
)

const unitFile = "../../contrib/recluse.service"

func TestTheUnitIsUnderstood(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		testneed.Lacking(t, "systemd is not installed")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(t.TempDir(), "recluse.service")
	// which is not installed here
	text := bytes.ReplaceAll(read(t, unitFile), []byte("/usr/local/bin/recluse "), []byte(self+" "))
	if err := os.WriteFile(unit, text, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", unit).CombinedOutput()
	if err != nil || len(out) > 0 { // what it does not know it passes over, with a word
		t.Errorf("%v: %s", err, out)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
