package agents

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
)

// maxSettings is the maximum size of a settings file in bytes. A settings file of Claude Code also contains its
// history.
const maxSettings = 256 << 20

// Change is the change of one file. Before is nil if the file is new, and After is nil if it is removed.
type Change struct {
	Path   string `json:"path"`
	What   string `json:"what"`
	Before []byte `json:"-"`
	After  []byte `json:"-"`
	// Backup is the path of the backup of the previous content.
	Backup string `json:"backup,omitempty"`

	mode fs.FileMode
}

// edit plans the change of one file, and returns nil if nothing changes. change receives nil for a missing file, and
// returns nil to remove the file.
func edit(path, what string, change func(path string, data []byte) ([]byte, error)) (*Change, error) {
	c := &Change{Path: path, What: what, mode: 0o644}
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		c.Path = resolved // a symbolic link to the file stays
	}
	fi, err := os.Stat(c.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, failed(c.Path, err)
	case !fi.Mode().IsRegular():
		return nil, unusable(c.Path, "", "not a regular file")
	case fi.Size() > maxSettings:
		return nil, unusable(c.Path, "", "larger than %d MiB", maxSettings>>20)
	default:
		c.mode = fi.Mode().Perm()
		if c.Before, err = os.ReadFile(c.Path); err != nil {
			return nil, failed(c.Path, err)
		}
		if c.Before == nil {
			c.Before = []byte{}
		}
	}
	if c.After, err = change(c.Path, c.Before); err != nil {
		return nil, err
	}
	if (c.Before == nil) == (c.After == nil) && bytes.Equal(c.Before, c.After) {
		return nil, nil // nothing to change
	}
	return c, nil
}

func failed(path string, err error) error {
	return &v1.Error{Code: CodeConfigFile, Op: "change " + path, Message: "cannot read or write the file", Err: err}
}

// Apply applies changes, each atomically. It saves the previous contents in the directory backups. If a change fails,
// the changes before it are undone.
func Apply(changes []*Change, backups string) (err error) {
	var made []*Change
	defer func() {
		if err == nil {
			return
		}
		for _, c := range made {
			if undo := write(c.Path, c.Before, c.mode); undo != nil {
				err = errors.Join(err, undo)
			}
		}
	}()
	for _, c := range changes {
		now, err := os.ReadFile(c.Path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return failed(c.Path, err)
		}
		if !bytes.Equal(now, c.Before) {
			return unusable(c.Path, "run the command again", "the file has changed meanwhile")
		}
		if c.Before != nil {
			if c.Backup, err = backUp(backups, c); err != nil {
				return err
			}
		}
		if err := write(c.Path, c.After, c.mode); err != nil {
			return err
		}
		made = append(made, c)
	}
	return nil
}

// backUp writes the previous content of a file into dir, and returns the path of the backup.
func backUp(dir string, c *Change) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", failed(dir, err)
	}
	stamp := time.Now().UTC().Format("20060102-150405.000000")
	path := filepath.Join(dir, fmt.Sprintf("%s-%s", stamp, filepath.Base(c.Path)))
	return path, write(path, c.Before, 0o600)
}

// write replaces a file atomically; nil removes it.
func write(path string, data []byte, mode fs.FileMode) error {
	if data == nil {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return failed(path, err)
		}
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return failed(path, err)
	}
	if err := atomicfile.Write(path, data, mode); err != nil {
		return failed(path, err)
	}
	return nil
}
