package dockerengine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// RuntimeAuto selects the runtime with the strongest isolation that the engine has.
const RuntimeAuto = "auto"

// Facts are the properties of an engine that do not change while it runs.
type Facts struct {
	ID       string // the same for every program
	Arch     string // GOARCH
	Version  string
	API      string
	Runtime  string   // runtime of our containers
	Command  string   // program of the runtime and its arguments, as far as the engine reports them
	Runtimes []string // names of all runtimes
	Level    sandbox.Isolation
	Memory   bool // memory limits are enforced
	CPU      bool
	PIDs     bool
	CPUs     int  // number of CPUs of its machine
	Podman   bool // the engine is Podman's service

	Storage    string // storage driver, such as overlay2
	FileSystem string // on which its data is; empty: unknown
}

// Product returns the product name of the engine.
func (f *Facts) Product() string {
	if f.Podman {
		return "Podman"
	}
	return "Docker"
}

// UserSpace reports whether the sandbox has its own kernel, so that its processes are not processes of the host's
// kernel. Limits of the host's kernel would then affect the whole sandbox instead of one process, so the guest
// enforces the limits.
func (f *Facts) UserSpace() bool { return f.Level >= sandbox.IsolationKernel }

// Facts returns the facts about the engine. It queries them once.
func (e *Engine) Facts(ctx context.Context) (*Facts, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.facts != nil {
		return e.facts, nil
	}
	f, err := e.askFacts(ctx)
	if err == nil {
		e.facts = f
	}
	return f, err
}

// IsPodman reports whether the engine is known to be Podman's service.
func (e *Engine) IsPodman(ctx context.Context) bool {
	f, err := e.Facts(ctx)
	return err == nil && f.Podman
}

func (e *Engine) askFacts(ctx context.Context) (*Facts, error) {
	const op = "query the Docker engine"
	res, err := e.Info(ctx, client.InfoOptions{})
	if err != nil {
		return nil, Failed(ctx, op, "cannot read its information", err)
	}
	i := res.Info
	if i.OSType != "linux" {
		return nil, &v1.Error{
			Code: v1.CodeBackendMissing, Op: op, Remedy: "switch it to Linux containers",
			Message: "the engine runs " + i.OSType + " containers, but sandboxes need Linux containers",
		}
	}
	about, err := e.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return nil, Failed(ctx, op, "cannot read its version", err)
	}
	f := &Facts{
		ID: i.ID, Podman: isPodman(about), Arch: goArch(i.Architecture), Version: i.ServerVersion, API: e.ClientVersion(),
		Runtimes: slices.Sorted(maps.Keys(i.Runtimes)),
		Memory:   i.MemoryLimit, CPU: i.CPUCfsQuota && i.CPUCfsPeriod, PIDs: i.PidsLimit, CPUs: i.NCPU,
	}
	f.Storage = i.Driver
	for _, s := range i.DriverStatus {
		if s[0] == "Backing Filesystem" {
			f.FileSystem = s[1]
		}
	}
	f.Runtime = chooseRuntime(e.runtime, i, f.Podman)
	if f.Podman {
		f.ID = podmanID(e.DaemonHost(), i)
		if err := podmanRuntime(f.Runtime, i.DefaultRuntime); err != nil {
			return nil, err
		}
		f.Runtimes = []string{f.Runtime}
	}
	rt, known := i.Runtimes[f.Runtime]
	// A runtime with a dot in its name is a containerd shim, which is not listed.
	if !known && e.runtime != "" && len(i.Runtimes) > 0 && !strings.Contains(f.Runtime, ".") {
		return nil, &v1.Error{
			Code: CodeRuntimeMissing, Op: op, Message: fmt.Sprintf("the engine has no runtime %q", f.Runtime),
			Remedy: "use one of " + strings.Join(f.Runtimes, ", ") + "; recluse install-runtime registers runsc",
		}
	}
	f.Level = isolationOf(f.Runtime, rt.Runtime)
	f.Command = strings.Join(append([]string{rt.Path}, rt.Args...), " ")
	return f, nil
}

// chooseRuntime returns the name of the runtime of our containers.
func chooseRuntime(asked string, i system.Info, podman bool) string {
	if asked != RuntimeAuto {
		return cmp.Or(asked, i.DefaultRuntime)
	}
	if podman {
		return i.DefaultRuntime // Podman lists all runtimes it knows, including missing ones
	}
	best := i.DefaultRuntime
	for _, name := range slices.Sorted(maps.Keys(i.Runtimes)) {
		if isolationOf(name, i.Runtimes[name].Runtime) > isolationOf(best, i.Runtimes[best].Runtime) {
			best = name
		}
	}
	return best
}

// isolationOf returns the isolation of a runtime. It is derived from the program that the engine starts, as far as
// the engine reports it. The name of the runtime counts only if no program is reported, because a name may refer to
// any program. An unknown runtime counts as IsolationContainer, the minimum of every runtime.
func isolationOf(name string, rt system.Runtime) sandbox.Isolation {
	program := name
	binary, _ := rt.Options["BinaryName"].(string) // program that a shim is configured to start
	switch {
	case rt.Path != "":
		program = filepath.Base(rt.Path)
	case binary != "":
		program = filepath.Base(binary)
	case rt.Type != "":
		program = rt.Type
	}
	switch {
	case strings.Contains(program, "runsc"),
		strings.Contains(program, "gvisor"),
		strings.HasPrefix(program, "recluse-engine"):
		return sandbox.IsolationKernel
	case strings.Contains(program, "kata"):
		return sandbox.IsolationVM
	}
	return sandbox.IsolationContainer
}

// goArch returns the GOARCH of a machine name of uname.
func goArch(machine string) string {
	switch machine {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return machine
}

// EventRemove is Podman's name for the event that a container was destroyed.
const EventRemove events.Action = "remove"

// isPodman reports whether the engine is Podman's service.
func isPodman(v client.ServerVersionResult) bool {
	return slices.ContainsFunc(v.Components, func(c system.ComponentVersion) bool { return c.Name == "Podman Engine" })
}

// podmanID returns an ID that stays the same for a service, because Podman makes up a new ID for each query.
func podmanID(host string, i system.Info) string {
	sum := sha256.Sum256([]byte(host + "\x00" + i.DockerRootDir + "\x00" + i.Name))
	return hex.EncodeToString(sum[:])
}

// podmanRuntime refuses a runtime that is not Podman's default. Podman's service accepts the name of another runtime
// but uses the default, so the isolation would differ from the requested one.
func podmanRuntime(asked, theirs string) error {
	if asked == theirs {
		return nil
	}
	return &v1.Error{
		Code: CodeRuntimeMissing,
		Op:   "query the Docker engine",
		Message: fmt.Sprintf(
			"no runtime %q: Podman's service runs every container with its default runtime %q",
			asked,
			theirs,
		),
		Remedy: fmt.Sprintf("set runtime = %q in the containers.conf of the service, and restart it", asked),
	}
}

// Missing reports whether err means that a container does not exist. Podman returns an internal error if the
// container disappears during the request.
func Missing(err error) bool {
	return errdefs.IsNotFound(err) || err != nil && strings.Contains(err.Error(), "no such container")
}

// NameTaken reports whether err means that another container has the name. Podman returns an internal error for it.
func NameTaken(err error) bool {
	return errdefs.IsConflict(err) || err != nil && strings.Contains(err.Error(), "name is already in use")
}

// VolumeExists reports whether err means that a volume already exists. Docker returns the existing volume without an
// error. So does Podman, unless two requests arrive at once.
func VolumeExists(err error) bool {
	return err != nil && strings.Contains(err.Error(), "volume already exists")
}

// Untag removes all names of an image that is in use. It uses Podman's own API, because Docker's API has no such
// call.
func (e *Engine) Untag(ctx context.Context, image string) error {
	dial := e.Dialer()
	t := &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}
	address := "http://podman/v4.0.0/libpod/images/" + url.PathEscape(strings.TrimPrefix(image, "sha256:")) + "/untag"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, nil)
	if err != nil {
		return err
	}
	res, err := (&http.Client{Transport: t}).Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode >= http.StatusBadRequest && res.StatusCode != http.StatusNotFound {
		text, _ := io.ReadAll(io.LimitReader(res.Body, maxComplaint)) // as much as can be read
		return fmt.Errorf("untag: %s: %s", res.Status, strings.TrimSpace(string(text)))
	}
	return nil
}
