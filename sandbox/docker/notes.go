package docker

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/recluse-dev/recluse/internal/statefile"
	"github.com/recluse-dev/recluse/internal/xdg"
	"github.com/recluse-dev/recluse/sandbox"
)

// note is what changes about a sandbox, kept on this machine because labels cannot be changed: which program answers for it since it
// attached, and labels that were set later.
type note struct {
	Owner  owner             `json:"owner"`
	Labels map[string]string `json:"labels,omitempty"`
}

// owner is a program, told from later ones of the same pid by its start, and from those of other machines by the machine's name.
type owner struct {
	Machine string `json:"machine"`
	PID     int    `json:"pid"`
	Start   uint64 `json:"start,omitempty"`
}

// self is this program.
func self() owner {
	o := owner{PID: os.Getpid(), Start: processStart(os.Getpid())}
	o.Machine, _ = os.Hostname() // without a name two machines without one are taken for the same
	return o
}

// ownerOf reads from a container's labels which program has made it. Without one nobody answers for it, and nobody is known to be dead.
func ownerOf(labels map[string]string) owner {
	var o owner
	if json.Unmarshal([]byte(labels[labelOwner]), &o) != nil {
		return owner{}
	}
	return o
}

// dead says for certain that the program has ended. Of another machine's nothing is certain.
func (o owner) dead() bool {
	here := self()
	if o.PID == 0 || o.Machine != here.Machine {
		return false
	}
	return !processAlive(o.PID, o.Start)
}

func (b *Backend) notePath(id string) string { return filepath.Join(b.dir, "notes", id+".json") }

// readNote gives the note on a sandbox; without one what its maker has written on the container stands.
func (b *Backend) readNote(r record) note {
	n := note{Owner: r.Owner, Labels: r.Spec.Labels}
	var got note
	if statefile.Read(b.notePath(r.ID), &got) != nil {
		return n
	}
	if got.Owner.PID != 0 {
		n.Owner = got.Owner
	}
	if got.Labels != nil {
		n.Labels = got.Labels
	}
	return n
}

func (b *Backend) writeNote(id string, n note) error { return writeJSON(b.notePath(id), n) }

// writeJSON writes a file that appears whole, and its directory.
func writeJSON(path string, v any) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return statefile.Write(path, v)
}

func (b *Backend) dropNote(id string) {
	_ = os.Remove(b.notePath(id)) // one that is left over names a sandbox that no longer exists
}

// instanceName gives this user's instance on this machine, which is made up once.
func instanceName(dir string) (string, error) {
	if err := xdg.Private(dir); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "instance")
	for {
		text, err := os.ReadFile(path)
		if name := strings.TrimSpace(string(text)); err == nil && goodName.MatchString(name) {
			return name, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if err == nil {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return "", err
			}
		}
		// A link appears with its content, so nobody reads half a name, and only one is first.
		tmp, err := os.CreateTemp(dir, ".instance-*")
		if err != nil {
			return "", err
		}
		_, err = tmp.WriteString(randomHex(8))
		err = errors.Join(err, tmp.Close())
		if err == nil {
			err = os.Link(tmp.Name(), path)
		}
		_ = os.Remove(tmp.Name())
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
}

// markUsed notes that this instance, if it is this machine's own, has made something.
func (b *Backend) markUsed() error {
	if b.opts.Instance != "" {
		return nil
	}
	path := filepath.Join(b.dir, "used")
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	return os.WriteFile(path, nil, 0o600)
}

// excuse drops the error of an engine that does not answer, when there can be nothing to tell: an instance of this machine's own that
// has never made anything. Most machines without an engine are such.
func (b *Backend) excuse(err error) error {
	if b.opts.Instance != "" || sandbox.CodeOf(err) != sandbox.CodeBackendMissing {
		return err
	}
	if _, missing := os.Stat(filepath.Join(b.dir, "used")); !errors.Is(missing, fs.ErrNotExist) {
		return err
	}
	return nil
}
