// Package dockersetup prepares a Docker engine for the docker backend. It builds an image from this machine, for
// machines that cannot reach a registry, and registers our engine as a runtime, so that containers get their own
// kernel.
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
	"slices"
	"strings"
	"time"

	"github.com/tailscale/hujson"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// InstalledEngine is the path to which our engine is copied, because the cache may be emptied.
const InstalledEngine = "/usr/local/bin/" + bundle.EngineName

// Runtime describes the program to register as a runtime, and the Docker engine to register it in.
type Runtime struct {
	Name    string // name of the runtime
	File    string // the Docker engine's daemon.json; empty: that of the Docker engine at Host
	Host    string // address of the Docker engine; empty: the default socket
	Program string // path of the program; empty: our engine, copied to InstalledEngine
}

// Installation is a planned installation or removal.
type Installation struct {
	RuntimeChange
	engine string // program to copy to InstalledEngine first; empty: none
	undo   bool
}

// Install plans the registration of the runtime.
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

// Uninstall plans the removal of the runtime, and of our engine if it is the program of the runtime.
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
		return backend.NotSupported("docker", "register a runtime in a Docker engine that runs in a virtual machine",
			"use a Docker engine on Linux; the gvisor backend also requires Linux")
	}
	if r.File == "" {
		r.File, err = daemonFile(r.Host)
	}
	return err
}

// Apply copies the program before the file names it, or removes it after the file no longer names it.
func (i *Installation) Apply() error {
	if !i.undo && i.engine != "" {
		if err := copyProgram(i.engine, InstalledEngine); err != nil {
			return &v1.Error{
				Code:    v1.CodeInternal,
				Op:      "install the engine",
				Message: "cannot write " + InstalledEngine,
				Remedy:  "run the command as root, or set --program",
				Err:     err,
			}
		}
	}
	if err := i.RuntimeChange.Apply(); err != nil {
		return err
	}
	if i.undo && i.Program == InstalledEngine && i.engine != InstalledEngine {
		if err := os.Remove(InstalledEngine); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return &v1.Error{
				Code:    v1.CodeInternal,
				Op:      "remove the engine",
				Message: "cannot remove " + InstalledEngine,
				Err:     err,
			}
		}
	}
	return nil
}

// daemonFile returns the path of the configuration file of the Docker engine at an address.
func daemonFile(host string) (string, error) {
	unknown := &v1.Error{Code: v1.CodeInvalidRequest, Op: "find the Docker engine's configuration"}
	socket, local := strings.CutPrefix(host, "unix://")
	switch {
	case host == "", local && (socket == "/var/run/docker.sock" || socket == "/run/docker.sock"):
		return "/etc/docker/daemon.json", nil
	case local && strings.HasPrefix(socket, "/run/user/"):
		if dir, err := os.UserConfigDir(); err == nil {
			return filepath.Join(dir, "docker", "daemon.json"), nil
		}
	case !local:
		unknown.Message = "the Docker engine at " + host + " is not on this machine"
		unknown.Remedy = "run the command on the Docker engine's machine"
		return "", unknown
	}
	unknown.Message = "the path of the configuration of the Docker engine at " + host + " is unknown"
	unknown.Remedy = "set --daemon-config"
	return "", unknown
}

// copyProgram replaces a program atomically, so that a running process of it is not disturbed.
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

// RuntimeChange is a planned change of the list of runtimes in the configuration file of a Docker engine.
type RuntimeChange struct {
	File    string // path with links resolved
	Before  []byte // present content; nil: the file does not exist
	After   []byte // new content; equal to Before if no change is needed
	Backup  string // path of the copy of the old file; empty: there is no old file
	Program string // program of the runtime
}

// Needed reports whether the file has to be changed.
func (c *RuntimeChange) Needed() bool { return !bytes.Equal(c.Before, c.After) }

// PlanRuntime plans the registration of a program as a runtime in the daemon.json of a Docker engine. Everything else
// in the file is kept. A runtime with that name and another program is an error; one that lacks arguments gets them.
func PlanRuntime(file, name, program string) (*RuntimeChange, error) {
	c, all, err := readDaemonFile(file)
	if err != nil {
		return nil, err
	}
	c.Program = program
	if is := all.Find(pointer(name)); is != nil {
		if p := programOf(is); p != program {
			return nil, &v1.Error{
				Code:    v1.CodeInvalidRequest,
				Op:      "register runtime",
				Message: fmt.Sprintf("%s already has a runtime %s, with the program %s", c.File, name, p),
				Remedy:  "use that runtime, or choose another name",
			}
		}
		have := entryOf(is).Args
		args := slices.Clone(have)
		for _, a := range runtimeArgs {
			if !slices.Contains(have, a) {
				args = append(args, a)
			}
		}
		if len(args) > len(have) {
			return c, c.apply(all, []patch{{"add", pointer(name) + "/runtimeArgs", args}})
		}
		return c, nil
	}
	var ops []patch
	if all.Find("/runtimes") == nil {
		ops = append(ops, patch{"add", "/runtimes", struct{}{}})
	}
	return c, c.apply(all, append(ops, patch{"add", pointer(name), entry{program, runtimeArgs}}))
}

// entry is a runtime in the configuration file.
type entry struct {
	Path string   `json:"path"`
	Args []string `json:"runtimeArgs,omitempty"`
}

// ProcessLimitArg is the argument of the runtime without which the guest cannot limit the processes of root.
const ProcessLimitArg = "--in-sandbox-cgroup=v2"

// runtimeArgs are the arguments of the runtime. The first leaves containers CAP_NET_RAW, if the Docker engine gives it
// to them: the guest needs it to redirect connections.
var runtimeArgs = []string{"--net-raw", ProcessLimitArg}

// PlanRuntimeRemoval plans the removal of a runtime. An empty list of runtimes stays in the file: without the list, the
// Docker engine would keep its runtimes until it is restarted.
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

// Apply makes the change. The file is replaced atomically, and the old file is kept as Backup.
func (c *RuntimeChange) Apply() error {
	const op = "change the Docker engine's configuration"
	now, err := os.ReadFile(c.File)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &v1.Error{Code: v1.CodeInternal, Op: op, Message: "cannot read " + c.File, Err: err}
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
			Code:    v1.CodeInternal,
			Op:      op,
			Message: "cannot write " + c.File,
			Remedy:  "run the command as the owner of the file, usually root",
			Err:     err,
		}
	}
	return nil
}

func unusable(file string, err error) error {
	return &v1.Error{
		Code:    v1.CodeInvalidRequest,
		Op:      "read the Docker engine's configuration",
		Message: "invalid " + file,
		Err:     err,
	}
}

// readDaemonFile reads a file. A missing file counts as an empty object.
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
		err = errors.New("comments and trailing commas are not allowed by the Docker engine")
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

// pointer returns the path of a runtime in the syntax of RFC 6901.
func pointer(name string) string {
	return "/runtimes/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

// apply computes the new content of the file.
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

func programOf(runtime *hujson.Value) string { return entryOf(runtime).Path }

func entryOf(runtime *hujson.Value) (e entry) {
	_ = json.Unmarshal(runtime.Pack(), &e) // a runtime without a path has another program
	return e
}
