//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// bare is a program that runs a bundle without our backend.
type bare struct {
	path  string
	flags []string
	env   []string
	// programs is a directory of the host that bundles see as /mnt, if it is set. They also have the host's network.
	programs string
}

// runsc returns gVisor's own program in a default build, of the version that the engine is built from. Its only flags
// are the state directory and, as in our backend, no network.
func (b *bench) runsc(ctx context.Context) bare {
	return bare{
		path:  build(ctx, filepath.Join(b.dir, "bin"), "gvisor.dev/gvisor/runsc"),
		flags: []string{"--network=none"},
	}
}

// tuned returns our engine with the flags of the backend. It sets up no limits, and therefore no cgroups.
func (b *bench) tuned() bare {
	return bare{
		path: b.engine.Path,
		flags: []string{
			"--platform=systrap", "--network=none", "--overlay2=none", "--host-settings=ignore",
			"--gofer-network-namespace=new", "--ignore-cgroups",
		},
		env: []string{"GOMAXPROCS=1"},
	}
}

// run returns the duration of one run of a command.
func (b *bench) run(ctx context.Context, with bare, argv ...string) time.Duration {
	cmd, clean := b.bundle(ctx, with, argv...)
	defer clean()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	began := time.Now()
	err := cmd.Run()
	checkf(err == nil, "%s run %v: %w: %s", filepath.Base(with.path), argv, err, stderr.String())
	return time.Since(began)
}

// piped returns the duration of a run of a command with its output piped into cat.
func (b *bench) piped(ctx context.Context, with bare, argv ...string) time.Duration {
	run, clean := b.bundle(ctx, with, argv...)
	defer clean()
	r, w := must2(os.Pipe())
	defer r.Close()
	defer w.Close() // closing twice does no harm
	var stderr bytes.Buffer
	run.Stdout, run.Stderr = w, &stderr
	cat := exec.CommandContext(ctx, "cat")
	cat.Stdin = r // its stdout is nil, which means /dev/null
	began := time.Now()
	check(cat.Start())
	err := run.Run()
	_ = w.Close()
	err = errors.Join(err, cat.Wait())
	checkf(err == nil, "%s run %v: %w: %s", filepath.Base(with.path), argv, err, stderr.String())
	return time.Since(began)
}

// state returns the state directory of these programs.
func (b *bench) state() string { return filepath.Join(b.dir, "engine") }

// unmountNetns removes what runsc keeps between runs: a bind mount of an empty network namespace.
func (b *bench) unmountNetns() {
	_ = unix.Unmount(filepath.Join(b.state(), "null-netns"), unix.MNT_DETACH) // runsc may never have run
}

var bundles int

// bundle prepares one run in its own bundle, with the root file system that the backend has built from the host.
func (b *bench) bundle(ctx context.Context, with bare, argv ...string) (cmd *exec.Cmd, clean func()) {
	roots := must(filepath.Glob(filepath.Join(b.dir, "data/gvisor/roots/host-*")))
	checkf(len(roots) > 0, "the backend has not built a root file system")
	bundles++
	id := "bare" + strconv.Itoa(bundles)
	dir := filepath.Join(b.dir, "bundles", id)
	state := b.state()
	check(errors.Join(os.MkdirAll(dir, 0o700), os.MkdirAll(state, 0o700)))
	spec := specs.Spec{
		Version:  specs.Version,
		Hostname: "bare",
		Root:     &specs.Root{Path: roots[0], Readonly: true},
		Process:  &specs.Process{Args: argv, Env: []string{"PATH=/usr/bin:/bin"}, Cwd: "/"},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/usr", Type: "bind", Source: "/usr", Options: []string{"rbind", "ro", "nosuid", "nodev"}},
		},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace},
			{Type: specs.NetworkNamespace},
			{Type: specs.IPCNamespace},
			{Type: specs.UTSNamespace},
			{Type: specs.MountNamespace},
		}},
	}
	if with.programs != "" {
		mount := specs.Mount{Destination: "/mnt", Type: "bind", Source: with.programs, Options: []string{"rbind", "ro"}}
		spec.Mounts = append(spec.Mounts, mount)
		spec.Linux.Namespaces = slices.DeleteFunc(spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
			return n.Type == specs.NetworkNamespace
		})
	}
	data := must(json.Marshal(spec))
	check(os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600))
	args := append([]string{"--root=" + state}, with.flags...)
	cmd = exec.CommandContext(ctx, with.path, append(args, "run", "--bundle="+dir, id)...)
	cmd.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, with.env...)
	return cmd, func() { _ = os.RemoveAll(dir) }
}
