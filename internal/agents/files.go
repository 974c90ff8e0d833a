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

// maxSettings bounds a file of settings. One of Claude Code's holds its history, too.
const maxSettings = 256 << 20

// Change is what happens to one file. Before or After is nil where there is no file.
type Change struct {
	Path   string `json:"path"`
	What   string `json:"what"`
	Before []byte `json:"-"`
	After  []byte `json:"-"`
	// Backup is where the content before was kept.
	Backup string `json:"backup,omitempty"`

	mode fs.FileMode
}

// edit plans the change of one file. change gets nil for a file that is not there, and gives nil for one that shall not be.
func edit(path, what string, change func(path string, data []byte) ([]byte, error)) (*Change, error) {
	c := &Change{Path: path, What: what, mode: 0o644}
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		c.Path = resolved // a link to the file stays one
	}
	fi, err := os.Stat(c.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, failed(c.Path, err)
	case !fi.Mode().IsRegular():
		return nil, unusable(c.Path, "", "it is no file")
	case fi.Size() > maxSettings:
		return nil, unusable(c.Path, "", "it is larger than any settings")
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
		return nil, nil // as it should be
	}
	return c, nil
}

func failed(path string, err error) error {
	return &v1.Error{Code: CodeConfigFile, Op: "change " + path, Message: "the file cannot be used", Err: err}
}

// Apply makes changes, each whole or not at all. What was there before is kept in the directory backups. When one fails, those before it are
// taken back.
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
			return unusable(c.Path, "try again", "it has changed meanwhile")
		}
		if c.Before != nil {
			if c.Backup, err = keep(backups, c); err != nil {
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

// keep writes what was there before.
func keep(dir string, c *Change) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", failed(dir, err)
	}
	stamp := time.Now().UTC().Format("20060102-150405.000000")
	path := filepath.Join(dir, fmt.Sprintf("%s-%s", stamp, filepath.Base(c.Path)))
	return path, write(path, c.Before, 0o600)
}

// write replaces a file as a whole; nil removes it.
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
