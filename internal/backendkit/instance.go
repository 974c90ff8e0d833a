package backendkit

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/internal/xdg"
)

var validName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$`)

// ValidName reports whether an instance may be called so.
func ValidName(name string) bool { return validName.MatchString(name) }

// Instance tells the sandboxes of one server or user from those of others that use the same engine or
// service. None touches those of another.
type Instance struct {
	Name string

	own string // directory of this user's own instance; empty for one that was named
}

// OpenInstance returns the instance called name, or without one this user's own on this machine, whose name
// is made up once and kept in dir.
func OpenInstance(dir, name string) (Instance, error) {
	if name != "" {
		return Instance{Name: name}, nil
	}
	name, err := ownName(dir)
	return Instance{Name: name, own: dir}, err
}

func ownName(dir string) (string, error) {
	if err := xdg.Private(dir); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "instance")
	for {
		text, err := os.ReadFile(path)
		if name := strings.TrimSpace(string(text)); err == nil && ValidName(name) {
			return name, nil
		}
		if err == nil {
			err = os.Remove(path) // it cannot be used
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if err := linkNew(path, ids.Hex(8)); err != nil {
			return "", err
		}
	}
}

// linkNew creates a file unless it exists. A link appears with its content, so nobody reads half of it.
func linkNew(path, text string) error {
	tmp := path + "-" + ids.Hex(4)
	defer func() { _ = os.Remove(tmp) }()
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		return err
	}
	if err := os.Link(tmp, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func (i Instance) usedFile() string { return filepath.Join(i.own, "used") }

// MarkUsed notes that this user's own instance has made something.
func (i Instance) MarkUsed() error {
	if i.own == "" {
		return nil
	}
	if _, err := os.Stat(i.usedFile()); err == nil {
		return nil
	}
	return os.WriteFile(i.usedFile(), nil, 0o600)
}

// Unused reports that the instance has certainly never made anything, as on most machines without an
// engine.
func (i Instance) Unused() bool {
	if i.own == "" {
		return false
	}
	_, err := os.Stat(i.usedFile())
	return errors.Is(err, fs.ErrNotExist)
}
