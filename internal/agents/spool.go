package agents

import (
	"os"
	"path/filepath"
	"time"

	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/internal/xdg"
)

// spoolKept is how long a command waits in a file for its run. One that its user did not approve never comes.
const spoolKept = 24 * time.Hour

// SpoolDir is where commands wait that are too long for a command line.
func SpoolDir() (string, error) {
	data, err := xdg.Data()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(data, "hook")
	return dir, xdg.Private(dir)
}

// spool keeps a long command for its run, and forgets those that never came.
func spool(code string) (string, error) {
	dir, err := SpoolDir()
	if err != nil {
		return "", err
	}
	if old, err := os.ReadDir(dir); err == nil {
		for _, e := range old {
			if fi, err := e.Info(); err == nil && time.Since(fi.ModTime()) > spoolKept {
				_ = os.Remove(filepath.Join(dir, e.Name())) // somebody else may have
			}
		}
	}
	path := filepath.Join(dir, ids.Hex(16)+".sh")
	return path, os.WriteFile(path, []byte(code), 0o600)
}
