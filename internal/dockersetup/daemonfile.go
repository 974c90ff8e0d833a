package dockersetup

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/sandbox"
)

// RuntimeChange is a planned change of the list of runtimes in an engine's configuration file.
type RuntimeChange struct {
	File    string // with links resolved
	Before  []byte // nil: there is no file yet
	After   []byte // what it would be; the same as Before when there is nothing to do
	Backup  string // where the old file is kept; empty: there is none
	Program string // of the runtime
}

// Needed reports whether there is anything to do.
func (c *RuntimeChange) Needed() bool { return !bytes.Equal(c.Before, c.After) }

// PlanRuntime plans to register a program as a runtime in an engine's daemon.json. Everything else in the file
// stays as it is. A runtime of that name with another program is an error.
func PlanRuntime(file, name, program string) (*RuntimeChange, error) {
	c, all, runtimes, err := readDaemonFile(file)
	if err != nil {
		return nil, err
	}
	c.Program = program
	if i := runtimes.index(name); i >= 0 {
		if is := programOf(runtimes[i].value); is != program {
			return nil, &sandbox.Error{
				Code: sandbox.CodeInvalidRequest, Op: "register a runtime",
				Message: fmt.Sprintf("%s has a runtime %s already, with the program %s", c.File, name, is),
				Remedy:  "use that one, or choose another name",
			}
		}
		return c, nil
	}
	entry, err := json.Marshal(map[string]string{"path": program})
	if err != nil {
		return nil, err
	}
	return c, c.put(all, append(runtimes, member{name, entry}))
}

// PlanRuntimeRemoval plans to remove a runtime again.
func PlanRuntimeRemoval(file, name string) (*RuntimeChange, error) {
	c, all, runtimes, err := readDaemonFile(file)
	if err != nil {
		return nil, err
	}
	i := runtimes.index(name)
	if i < 0 {
		return c, nil
	}
	c.Program = programOf(runtimes[i].value)
	return c, c.put(all, slices.Delete(runtimes, i, i+1))
}

// Apply makes the change. The file is replaced as a whole, and the old one is kept beside it.
func (c *RuntimeChange) Apply() error {
	const op = "change the engine's configuration"
	now, err := os.ReadFile(c.File)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &sandbox.Error{Code: sandbox.CodeInternal, Op: op, Message: "it cannot be read", Err: err}
	}
	if !bytes.Equal(now, c.Before) {
		return &sandbox.Error{Code: sandbox.CodeInternal, Op: op, Message: c.File + " was changed meanwhile", Retry: true}
	}
	if !c.Needed() {
		return nil
	}
	mode := fs.FileMode(0o644)
	if fi, err := os.Stat(c.File); err == nil {
		mode = fi.Mode().Perm()
	}
	err = os.MkdirAll(filepath.Dir(c.File), 0o755)
	if err == nil && c.Backup != "" {
		err = atomicfile.Write(c.Backup, c.Before, mode)
	}
	if err == nil {
		err = atomicfile.Write(c.File, c.After, mode)
	}
	if err != nil {
		return &sandbox.Error{
			Code: sandbox.CodeInternal, Op: op, Message: "it cannot be written",
			Remedy: "run this as the user whose file it is, often root", Err: err,
		}
	}
	return nil
}

const runtimesKey = "runtimes"

// readDaemonFile reads a file and the runtimes in it. A missing one is empty.
func readDaemonFile(file string) (c *RuntimeChange, all, runtimes members, err error) {
	bad := func(err error) error {
		return &sandbox.Error{Code: sandbox.CodeInvalidRequest, Op: "read the engine's configuration", Message: file + " cannot be used", Err: err}
	}
	if real, err := filepath.EvalSymlinks(file); err == nil {
		file = real
	}
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil, bad(err)
	}
	c = &RuntimeChange{File: file, Before: text, After: text}
	if err == nil {
		c.Backup = file + time.Now().UTC().Format(".before-recluse-20060102T150405Z")
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return c, nil, nil, nil
	}
	if all, err = readMembers(text); err != nil {
		return nil, nil, nil, bad(err)
	}
	if i := all.index(runtimesKey); i >= 0 {
		if runtimes, err = readMembers(all[i].value); err != nil {
			return nil, nil, nil, bad(fmt.Errorf("%s: %w", runtimesKey, err))
		}
	}
	return c, all, runtimes, nil
}

// put makes the file's new content.
func (c *RuntimeChange) put(all, runtimes members) error {
	if i := all.index(runtimesKey); i >= 0 {
		// Also when there are none: without the key the engine would keep those it has until it is restarted.
		all[i].value = runtimes.json()
	} else {
		all = append(all, member{runtimesKey, runtimes.json()})
	}
	var out bytes.Buffer
	if err := json.Indent(&out, all.json(), "", "  "); err != nil {
		return err
	}
	out.WriteByte('\n')
	c.After = out.Bytes()
	return nil
}

// members are those of an object in their order, which people care about in a file they wrote.
type members []member

type member struct {
	name  string
	value json.RawMessage
}

func (m members) index(name string) int {
	return slices.IndexFunc(m, func(x member) bool { return x.name == name })
}

func readMembers(text []byte) (members, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.Join(errors.New("it is not an object"), err)
	}
	var out members
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		name, _ := t.(string)
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		out = append(out, member{name, value})
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if d.More() {
		return nil, errors.New("more than one value")
	}
	return out, nil
}

func (m members) json() json.RawMessage {
	out := []byte{'{'}
	for i, x := range m {
		if i > 0 {
			out = append(out, ',')
		}
		name, _ := json.Marshal(x.name) // a string has a form
		out = append(append(append(out, name...), ':'), x.value...)
	}
	return append(out, '}')
}

func programOf(entry json.RawMessage) string {
	var e struct{ Path string }
	_ = json.Unmarshal(entry, &e) // without a path it is another program
	return e.Path
}
