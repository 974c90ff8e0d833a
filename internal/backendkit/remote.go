package backendkit

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/filelock"
	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/internal/lazyregexp"
	"github.com/recluse-dev/recluse/internal/xdg"
)

var validName = lazyregexp.New(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$`)

// ValidName reports whether name is valid for an instance.
func ValidName(name string) bool { return validName().MatchString(name) }

// Instance separates the sandboxes of one server or user from those of others that use the same engine or service. An
// instance never touches the sandboxes of another instance.
type Instance struct {
	Name string

	own string // directory of this user's own instance; empty for a named instance
}

// OpenInstance returns the instance with a name. If name is empty, it returns this user's own instance on this machine,
// whose name is generated once and kept in dir.
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
	lock, err := filelock.Acquire(context.Background(), filepath.Join(dir, ".instance-lock"))
	if err != nil {
		return "", err
	}
	defer lock.Release()
	path := filepath.Join(dir, "instance")
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if name := strings.TrimSpace(string(text)); ValidName(name) {
		return name, nil
	}
	name := ids.Hex(8)
	return name, atomicfile.Write(path, []byte(name), 0o600)
}

func (i Instance) usedFile() string { return filepath.Join(i.own, "used") }

// MarkUsed records that this user's own instance has made a sandbox.
func (i Instance) MarkUsed() error {
	if i.own == "" {
		return nil
	}
	if _, err := os.Stat(i.usedFile()); err == nil {
		return nil
	}
	return os.WriteFile(i.usedFile(), nil, 0o600)
}

// Unused reports whether the instance has certainly never made a sandbox, which is the case on most machines without an
// engine.
func (i Instance) Unused() bool {
	if i.own == "" {
		return false
	}
	_, err := os.Stat(i.usedFile())
	return errors.Is(err, fs.ErrNotExist)
}

// Note holds the changeable facts about a sandbox whose record cannot be changed: the program that owns the sandbox
// since it attached, and labels that were set later.
type Note struct {
	Owner  Process           `json:"owner"`
	Labels map[string]string `json:"labels,omitempty"`
}

// Notes stores notes in a directory of this machine.
type Notes struct{ Dir string }

func (n Notes) path(id string) string { return filepath.Join(n.Dir, id+".json") }

// Read returns the note on a sandbox. Values that the note lacks are those of the record.
func (n Notes) Read(r *Record) Note {
	out := Note{Owner: r.Owner, Labels: r.Spec.Labels}
	var got Note
	if atomicfile.ReadJSON(n.path(r.ID), &got) != nil {
		return out
	}
	if got.Owner.PID != 0 {
		out.Owner = got.Owner
	}
	if got.Labels != nil {
		out.Labels = got.Labels
	}
	return out
}

// Write replaces the note on a sandbox.
func (n Notes) Write(id string, note Note) error {
	if err := os.MkdirAll(n.Dir, 0o700); err != nil {
		return err
	}
	return atomicfile.WriteJSON(n.path(id), note)
}

// Remove removes the note on a sandbox that has ended. Errors are ignored, because a remaining note does no harm.
func (n Notes) Remove(id string) { _ = os.Remove(n.path(id)) }
