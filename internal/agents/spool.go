package agents

import (
	"os"
	"path/filepath"
	"time"

	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/internal/xdg"
)

// spoolMaxAge is how long a spooled command is kept. A command that the user does not approve never runs, and is
// removed then.
const spoolMaxAge = 24 * time.Hour

// SpoolDir returns the directory of spooled commands, and creates it if necessary.
func SpoolDir() (string, error) {
	data, err := xdg.Data()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(data, "hook")
	return dir, xdg.Private(dir)
}

// spool writes a command into a file and returns its path. It removes files that are older than spoolMaxAge.
func spool(code string) (string, error) {
	dir, err := SpoolDir()
	if err != nil {
		return "", err
	}
	if old, err := os.ReadDir(dir); err == nil {
		for _, e := range old {
			if fi, err := e.Info(); err == nil && time.Since(fi.ModTime()) > spoolMaxAge {
				_ = os.Remove(filepath.Join(dir, e.Name())) // another process may have removed it
			}
		}
	}
	path := filepath.Join(dir, ids.Hex(16)+".sh")
	return path, os.WriteFile(path, []byte(code), 0o600)
}
