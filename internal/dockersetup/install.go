package dockersetup

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/sandbox"
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
			return &sandbox.Error{
				Code: sandbox.CodeInternal, Op: "install the engine", Message: InstalledEngine + " cannot be written",
				Remedy: "run this as root, or name a --program", Err: err,
			}
		}
	}
	if err := i.RuntimeChange.Apply(); err != nil {
		return err
	}
	if i.undo && i.Program == InstalledEngine && i.engine != InstalledEngine {
		if err := os.Remove(InstalledEngine); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return &sandbox.Error{Code: sandbox.CodeInternal, Op: "remove the engine's copy", Message: InstalledEngine, Err: err}
		}
	}
	return nil
}

// daemonFile returns the configuration file of the engine at an address.
func daemonFile(host string) (string, error) {
	unknown := &sandbox.Error{Code: sandbox.CodeInvalidRequest, Op: "find the engine's configuration"}
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
