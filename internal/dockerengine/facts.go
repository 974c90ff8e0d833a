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

// RuntimeAuto chooses the strongest runtime that the engine has.
const RuntimeAuto = "auto"

// Facts is what is known of an engine and does not change while it runs.
type Facts struct {
	ID       string // the engine's, the same for every program
	Arch     string // as Go calls it
	Version  string
	API      string
	Runtime  string   // the one that containers get
	Runtimes []string // the names of all
	Level    sandbox.Isolation
	Memory   bool // limits of memory are enforced
	CPU      bool
	PIDs     bool
	CPUs     int  // of its machine
	Podman   bool // it is Podman's service
}

// Product is what the engine is called.
func (f *Facts) Product() string {
	if f.Podman {
		return "Podman"
	}
	return "Docker"
}

// UserSpace reports that processes inside are not the host kernel's own: its limits then hit the sandbox and not
// the offender, and the guest enforces them instead.
func (f *Facts) UserSpace() bool { return f.Level >= sandbox.IsolationKernel }

// Facts asks the engine about itself, once.
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
	const op = "ask the Docker engine"
	res, err := e.Info(ctx, client.InfoOptions{})
	if err != nil {
		return nil, Failed(ctx, op, "it reports nothing about itself", err)
	}
	i := res.Info
	if i.OSType != "linux" {
		return nil, &v1.Error{
			Code: v1.CodeBackendMissing, Op: op, Remedy: "switch it to Linux containers",
			Message: "it runs " + i.OSType + " containers, and sandboxes are Linux machines",
		}
	}
	about, err := e.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return nil, Failed(ctx, op, "it reports nothing about itself", err)
	}
	f := &Facts{
		ID: i.ID, Podman: isPodman(about), Arch: goArch(i.Architecture), Version: i.ServerVersion, API: e.ClientVersion(),
		Runtimes: slices.Sorted(maps.Keys(i.Runtimes)),
		Memory:   i.MemoryLimit, CPU: i.CPUCfsQuota && i.CPUCfsPeriod, PIDs: i.PidsLimit, CPUs: i.NCPU,
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
	// A runtime with a dot is a shim, which no list names.
	if !known && e.runtime != "" && len(i.Runtimes) > 0 && !strings.Contains(f.Runtime, ".") {
		return nil, &v1.Error{
			Code: CodeRuntimeMissing, Op: op, Message: fmt.Sprintf("it has no runtime %q", f.Runtime),
			Remedy: "it has " + strings.Join(f.Runtimes, ", ") + "; recluse install-runtime registers runsc",
		}
	}
	f.Level = isolationOf(f.Runtime, rt.Runtime)
	return f, nil
}

// chooseRuntime returns the name of the runtime that containers get.
func chooseRuntime(asked string, i system.Info, podman bool) string {
	if asked != RuntimeAuto {
		return cmp.Or(asked, i.DefaultRuntime)
	}
	if podman {
		return i.DefaultRuntime // it lists every runtime it has heard of, also those that are not there
	}
	best := i.DefaultRuntime
	for _, name := range slices.Sorted(maps.Keys(i.Runtimes)) {
		if isolationOf(name, i.Runtimes[name].Runtime) > isolationOf(best, i.Runtimes[best].Runtime) {
			best = name
		}
	}
	return best
}

// isolationOf returns what stands between code and host with a runtime. The program that the engine starts counts,
// as far as it tells; a name says nothing where it leads to another program. An unknown runtime is taken for what
// every runtime is at least.
func isolationOf(name string, rt system.Runtime) sandbox.Isolation {
	program := name
	binary, _ := rt.Options["BinaryName"].(string) // what a shim is told to start
	switch {
	case rt.Path != "":
		program = filepath.Base(rt.Path)
	case binary != "":
		program = filepath.Base(binary)
	case rt.Type != "":
		program = rt.Type
	}
	switch {
	case strings.Contains(program, "runsc"), strings.Contains(program, "gvisor"), strings.HasPrefix(program, "recluse-engine"):
		return sandbox.IsolationKernel
	case strings.Contains(program, "kata"):
		return sandbox.IsolationVM
	}
	return sandbox.IsolationContainer
}

// goArch returns Go's name for what uname calls a machine.
func goArch(machine string) string {
	switch machine {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return machine
}

// EventRemove is what Podman calls the destruction of a container.
const EventRemove events.Action = "remove"

// isPodman tells Podman's service from Docker's engine.
func isPodman(v client.ServerVersionResult) bool {
	return slices.ContainsFunc(v.Components, func(c system.ComponentVersion) bool { return c.Name == "Podman Engine" })
}

// podmanID returns what stays the same of a service from one look to the next: Podman makes up a new id whenever
// it is asked for one.
func podmanID(host string, i system.Info) string {
	sum := sha256.Sum256([]byte(host + "\x00" + i.DockerRootDir + "\x00" + i.Name))
	return hex.EncodeToString(sum[:])
}

// podmanRuntime refuses a runtime that is not Podman's default: its service takes the name and uses the default
// all the same, so that the isolation would be another than the one that was asked for.
func podmanRuntime(asked, theirs string) error {
	if asked == theirs {
		return nil
	}
	return &v1.Error{
		Code: CodeRuntimeMissing, Op: "ask the Docker engine",
		Message: fmt.Sprintf("Podman's service runs every container with %s, whatever runtime is asked for; no runtime %q", theirs, asked),
		Remedy:  fmt.Sprintf("set runtime = %q in the containers.conf of the service, and start it again", asked),
	}
}

// Missing reports that a container does not exist. Podman calls it an internal error where the container goes away
// during the request.
func Missing(err error) bool {
	return errdefs.IsNotFound(err) || err != nil && strings.Contains(err.Error(), "no such container")
}

// NameTaken reports that another container has a name, which Podman calls an internal error.
func NameTaken(err error) bool {
	return errdefs.IsConflict(err) || err != nil && strings.Contains(err.Error(), "name is already in use")
}

// VolumeExists reports that a volume could not be made because it exists. Docker returns the existing one; so does
// Podman, unless two ask at once.
func VolumeExists(err error) bool {
	return err != nil && strings.Contains(err.Error(), "volume already exists")
}

// Untag removes all names from an image that is in use. Docker's API has no such call, so this is Podman's own.
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
		text, _ := io.ReadAll(io.LimitReader(res.Body, maxComplaint)) // as much as there is
		return fmt.Errorf("untag: %s: %s", res.Status, strings.TrimSpace(string(text)))
	}
	return nil
}
