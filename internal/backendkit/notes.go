package backendkit

import (
	"os"
	"path/filepath"

	"github.com/recluse-dev/recluse/internal/atomicfile"
)

// Note is what changes about a sandbox whose record cannot: the program that answers for it since it
// attached, and labels that were set later.
type Note struct {
	Owner  Process           `json:"owner"`
	Labels map[string]string `json:"labels,omitempty"`
}

// Notes keeps notes in a directory of this machine.
type Notes struct{ Dir string }

func (n Notes) path(id string) string { return filepath.Join(n.Dir, id+".json") }

// Read returns the note on a sandbox. Without one the record stands.
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

// Remove removes the note on a sandbox that has ended. One that stays does no harm.
func (n Notes) Remove(id string) { _ = os.Remove(n.path(id)) }
