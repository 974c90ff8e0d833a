// Package dockersetup prepares a Docker engine for the docker backend: it builds an image from this machine where no
// registry can be reached, and registers our engine as a runtime, so that containers get a kernel of their own.
package dockersetup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/tailscale/hujson"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// InstalledEngine is where our engine is copied to, since the cache may be emptied.
const InstalledEngine = "/usr/local/bin/" + bundle.EngineName

// Runtime says which program to register as a runtime, and where.
type Runtime struct {
	Name    string // of the runtime
	File    string // the engine's daemon.json; empty: that of the engine at Host
	Host    string // the engine's address; empty: the default socket
	Program string // used where it is; empty: our engine, copied to InstalledEngine
}

// Installation is a planned installation, or its undoing.
type Installation struct {
	RuntimeChange
	engine string // program to copy to InstalledEngine first, or ""
	undo   bool
}

// Install plans to register the runtime.
func (r Runtime) Install(ctx context.Context) (*Installation, error) {
	if err := r.locate(); err != nil {
		return nil, err
	}
	i := &Installation{}
	if r.Program == "" {
		p, err := bundle.Engine(ctx)
		if err != nil {
			return nil, err
		}
		r.Program, i.engine = InstalledEngine, p.Path
	}
	c, err := PlanRuntime(r.File, r.Name, r.Program)
	if err != nil {
		return nil, err
	}
	i.RuntimeChange = *c
	return i, nil
}

// Uninstall plans to remove the runtime again, and our engine if that is its program.
func (r Runtime) Uninstall(ctx context.Context) (*Installation, error) {
	if err := r.locate(); err != nil {
		return nil, err
	}
	c, err := PlanRuntimeRemoval(r.File, r.Name)
	if err != nil {
		return nil, err
	}
	i := &Installation{RuntimeChange: *c, undo: true}
	if p, err := bundle.Engine(ctx); err == nil {
		i.engine = p.Path
	}
	return i, nil
}

// locate sets File.
func (r *Runtime) locate() (err error) {
	if runtime.GOOS != "linux" {
		return backend.NotSupported("docker", "register a runtime in an engine that is in a virtual machine",
			"the gvisor backend needs Linux as well")
	}
	if r.File == "" {
		r.File, err = daemonFile(r.Host)
	}
	return err
}

// Apply installs the program before the file names it, or removes it afterwards.
func (i *Installation) Apply() error {
	if !i.undo && i.engine != "" {
		if err := copyProgram(i.engine, InstalledEngine); err != nil {
			return &v1.Error{
				Code: v1.CodeInternal, Op: "install the engine", Message: InstalledEngine + " cannot be written",
				Remedy: "run this as root, or name a --program", Err: err,
			}
		}
	}
	if err := i.RuntimeChange.Apply(); err != nil {
		return err
	}
	if i.undo && i.Program == InstalledEngine && i.engine != InstalledEngine {
		if err := os.Remove(InstalledEngine); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return &v1.Error{Code: v1.CodeInternal, Op: "remove the engine's copy", Message: InstalledEngine, Err: err}
		}
	}
	return nil
}

// daemonFile returns the configuration file of the engine at an address.
func daemonFile(host string) (string, error) {
	unknown := &v1.Error{Code: v1.CodeInvalidRequest, Op: "find the engine's configuration"}
	socket, local := strings.CutPrefix(host, "unix://")
	switch {
	case host == "", local && (socket == "/var/run/docker.sock" || socket == "/run/docker.sock"):
		return "/etc/docker/daemon.json", nil
	case local && strings.HasPrefix(socket, "/run/user/"):
		if dir, err := os.UserConfigDir(); err == nil {
			return filepath.Join(dir, "docker", "daemon.json"), nil
		}
	case !local:
		unknown.Message, unknown.Remedy = "the engine at "+host+" is not on this machine", "run this there"
		return "", unknown
	}
	unknown.Message, unknown.Remedy = "unknown place of the configuration of "+host, "name it with --daemon-config"
	return "", unknown
}

// copyProgram replaces a program as a whole, so that one that runs is not disturbed.
func copyProgram(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if have, err := os.ReadFile(to); err == nil && bytes.Equal(have, data) {
		return nil
	}
	return atomicfile.Write(to, data, 0o755)
}

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
	c, all, err := readDaemonFile(file)
	if err != nil {
		return nil, err
	}
	c.Program = program
	if is := all.Find(pointer(name)); is != nil {
		if p := programOf(is); p != program {
			return nil, &v1.Error{
				Code: v1.CodeInvalidRequest, Op: "register a runtime",
				Message: fmt.Sprintf("%s has a runtime %s already, with the program %s", c.File, name, p),
				Remedy:  "use that one, or choose another name",
			}
		}
		return c, nil
	}
	var ops []patch
	if all.Find("/runtimes") == nil {
		ops = append(ops, patch{"add", "/runtimes", struct{}{}})
	}
	return c, c.apply(all, append(ops, patch{"add", pointer(name), map[string]string{"path": program}}))
}

// PlanRuntimeRemoval plans to remove a runtime again. The list of runtimes stays, also when it is empty: without it the
// engine would keep those it has until it is restarted.
func PlanRuntimeRemoval(file, name string) (*RuntimeChange, error) {
	c, all, err := readDaemonFile(file)
	if err != nil {
		return nil, err
	}
	is := all.Find(pointer(name))
	if is == nil {
		return c, nil
	}
	c.Program = programOf(is)
	return c, c.apply(all, []patch{{"remove", pointer(name), nil}})
}

// Apply makes the change. The file is replaced as a whole, and the old one is kept beside it.
func (c *RuntimeChange) Apply() error {
	const op = "change the engine's configuration"
	now, err := os.ReadFile(c.File)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &v1.Error{Code: v1.CodeInternal, Op: op, Message: "it cannot be read", Err: err}
	}
	if !bytes.Equal(now, c.Before) {
		return &v1.Error{Code: v1.CodeInternal, Op: op, Message: c.File + " was changed meanwhile", Retry: true}
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
		return &v1.Error{
			Code: v1.CodeInternal, Op: op, Message: "it cannot be written",
			Remedy: "run this as the user whose file it is, often root", Err: err,
		}
	}
	return nil
}

func unusable(file string, err error) error {
	return &v1.Error{
		Code: v1.CodeInvalidRequest, Op: "read the engine's configuration", Message: file + " cannot be used", Err: err,
	}
}

// readDaemonFile reads a file. A missing one is an empty object.
func readDaemonFile(file string) (*RuntimeChange, *hujson.Value, error) {
	if real, err := filepath.EvalSymlinks(file); err == nil {
		file = real
	}
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, unusable(file, err)
	}
	c := &RuntimeChange{File: file, Before: text, After: text}
	if err == nil {
		c.Backup = file + time.Now().UTC().Format(".before-recluse-20060102T150405Z")
	}
	if len(bytes.TrimSpace(text)) == 0 {
		text = []byte("{}")
	}
	all, err := hujson.Parse(bytes.Clone(text))
	if err == nil && !all.IsStandard() {
		err = errors.New("it has comments or trailing commas, which the engine does not accept")
	}
	if err != nil {
		return nil, nil, unusable(file, err)
	}
	return c, &all, nil
}

// patch is one operation of RFC 6902.
type patch struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// pointer is the path of a runtime, as RFC 6901 writes it.
func pointer(name string) string {
	return "/runtimes/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

// apply makes the file's new content.
func (c *RuntimeChange) apply(all *hujson.Value, ops []patch) error {
	text, err := json.Marshal(ops)
	if err == nil {
		err = all.Patch(text)
	}
	var out bytes.Buffer
	if err == nil {
		err = json.Indent(&out, all.Pack(), "", "  ")
	}
	if err != nil {
		return unusable(c.File, err)
	}
	out.WriteByte('\n')
	c.After = out.Bytes()
	return nil
}

func programOf(runtime *hujson.Value) string {
	var e struct{ Path string }
	_ = json.Unmarshal(runtime.Pack(), &e) // without a path it is another program
	return e.Path
}
