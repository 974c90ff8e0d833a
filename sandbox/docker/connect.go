package docker

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/connhelper"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"github.com/recluse-dev/recluse/sandbox"
)

// connect gives a client of the engine that the options name. Nothing is dialled yet.
func connect(o Options) (*client.Client, error) {
	at, err := locate(o)
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeBackendMissing, Op: "find the Docker engine", Err: err}
	}
	opts := []client.Opt{client.WithAPIVersionFromEnv(), client.WithUserAgent("recluse")}
	helper, err := connhelper.GetConnectionHelper(at.host)
	switch {
	case err != nil:
		return nil, &sandbox.Error{Code: sandbox.CodeBackendMissing, Op: "find the Docker engine", Message: at.host, Err: err}
	case helper != nil:
		opts = append(opts, client.WithHost(helper.Host), client.WithDialContext(helper.Dialer))
	case at.host != "":
		if at.tls != "" {
			opts = append(opts, client.WithTLSClientConfig(filepath.Join(at.tls, "ca.pem"), filepath.Join(at.tls, "cert.pem"), filepath.Join(at.tls, "key.pem")))
		} else if at.fromEnv {
			opts = append(opts, client.WithTLSClientConfigFromEnv())
		}
		opts = append(opts, client.WithHost(at.host))
	}
	cli, err := client.New(opts...)
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeBackendMissing, Op: "find the Docker engine", Message: at.host, Err: err}
	}
	return cli, nil
}

// address is where an engine is.
type address struct {
	host    string // empty: the default socket
	tls     string // directory with ca.pem, cert.pem and key.pem; empty: none
	fromEnv bool   // whether DOCKER_TLS_VERIFY and DOCKER_CERT_PATH count
}

// locate chooses as the docker command does: what was asked for, DOCKER_HOST, DOCKER_CONTEXT, the context in use.
func locate(o Options) (address, error) {
	if o.Host != "" {
		return address{host: o.Host, fromEnv: true}, nil
	}
	name := o.Context
	if name == "" {
		if h := os.Getenv(client.EnvOverrideHost); h != "" {
			return address{host: h, fromEnv: true}, nil
		}
		name = os.Getenv("DOCKER_CONTEXT")
	}
	dir := config.Dir()
	if name == "" {
		f, err := config.Load(dir)
		if err != nil {
			return address{}, err
		}
		name = f.CurrentContext
	}
	if name == "" || name == "default" {
		return address{fromEnv: true}, nil
	}
	return readContext(dir, name)
}

// readContext reads a context where the docker command keeps it.
func readContext(dir, name string) (address, error) {
	sum := sha256.Sum256([]byte(name))
	id := hex.EncodeToString(sum[:])
	text, err := os.ReadFile(filepath.Join(dir, "contexts", "meta", id, "meta.json"))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return address{}, fmt.Errorf("there is no docker context %q", name)
		}
		return address{}, err
	}
	var meta struct {
		Endpoints map[string]struct{ Host string }
	}
	if err := json.Unmarshal(text, &meta); err != nil {
		return address{}, fmt.Errorf("docker context %q: %w", name, err)
	}
	at := address{host: meta.Endpoints["docker"].Host}
	if at.host == "" {
		return address{}, fmt.Errorf("docker context %q names no engine", name)
	}
	tls := filepath.Join(dir, "contexts", "tls", id, "docker")
	if _, err := os.Stat(filepath.Join(tls, "cert.pem")); err == nil {
		at.tls = tls
	}
	return at, nil
}

// local says whether the engine sees this machine's directories.
func (b *Backend) local() bool {
	u, err := url.Parse(b.cli.DaemonHost())
	return err == nil && (u.Scheme == "unix" || u.Scheme == "npipe")
}

// facts is what is known of an engine and does not change while it runs.
type facts struct {
	id      string // the engine's, the same for every program
	arch    string // as Go calls it
	version string
	api     string
	runtime string   // the one that sandboxes get
	all     []string // the names of those there are
	level   sandbox.Isolation
	memory  bool // limits of memory are kept
	cpu     bool
	pids    bool
	podman  bool // it is Podman's service
}

// engineFacts is asked for once and kept while the engine answers.
type engineFacts struct {
	mu   sync.Mutex
	have *facts // guarded by mu
}

func (b *Backend) facts(ctx context.Context) (*facts, error) {
	b.engine.mu.Lock()
	defer b.engine.mu.Unlock()
	if b.engine.have != nil {
		return b.engine.have, nil
	}
	f, err := b.askFacts(ctx)
	if err == nil {
		b.engine.have = f
	}
	return f, err
}

// isPodman says whether the engine is known to be Podman's service.
func (b *Backend) isPodman(ctx context.Context) bool {
	f, err := b.facts(ctx)
	return err == nil && f.podman
}

func (b *Backend) askFacts(ctx context.Context) (*facts, error) {
	const op = "ask the Docker engine"
	res, err := b.cli.Info(ctx, client.InfoOptions{})
	if err != nil {
		return nil, failed(ctx, op, "it tells nothing about itself", err)
	}
	i := res.Info
	if i.OSType != "linux" {
		return nil, &sandbox.Error{Code: sandbox.CodeBackendMissing, Op: op, Message: "it runs " + i.OSType + " containers, and sandboxes are Linux machines", Remedy: "switch it to Linux containers"}
	}
	about, err := b.cli.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return nil, failed(ctx, op, "it tells nothing about itself", err)
	}
	podman := isPodman(about)
	f := &facts{
		id: i.ID, podman: podman, arch: goArch(i.Architecture), version: i.ServerVersion, api: b.cli.ClientVersion(), runtime: chooseRuntime(b.opts.Runtime, i, podman), all: slices.Sorted(maps.Keys(i.Runtimes)),
		memory: i.MemoryLimit, cpu: i.CPUCfsQuota && i.CPUCfsPeriod, pids: i.PidsLimit,
	}
	if podman {
		f.id = podmanID(b.cli.DaemonHost(), i)
		if err := podmanRuntime(f.runtime, i.DefaultRuntime); err != nil {
			return nil, err
		}
		f.all = []string{f.runtime}
	}
	rt, known := i.Runtimes[f.runtime]
	if !known && b.opts.Runtime != "" && len(i.Runtimes) > 0 && !strings.Contains(f.runtime, ".") { // one with a dot is a shim, which no list names
		return nil, &sandbox.Error{
			Code: CodeRuntimeMissing, Op: op, Message: fmt.Sprintf("it has no runtime %q", f.runtime),
			Remedy: "it has " + strings.Join(f.all, ", ") + "; recluse install-runtime registers runsc",
		}
	}
	f.level = isolationOf(f.runtime, rt.Runtime)
	return f, nil
}

// chooseRuntime gives the name of the runtime that sandboxes get.
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

// goArch gives Go's name for what uname calls a machine.
func goArch(machine string) string {
	switch machine {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return machine
}
