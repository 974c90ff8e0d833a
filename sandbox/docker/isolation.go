package docker

import (
	"path/filepath"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/system"

	"github.com/recluse-dev/recluse/sandbox"
)

// level is the isolation that a sandbox really has.
func (b *Backend) level(f *facts) sandbox.Isolation {
	hc, err := b.opts.hostConfig()
	if err != nil || container.NetworkMode(b.network()).IsHost() || sharesHost(hc) {
		return sandbox.IsolationNone
	}
	if len(b.opts.HostConfig) == 0 && !b.opts.UnsafeRoot && !b.opts.UnsafeHostConfig {
		return f.level
	}
	return max(f.level-1, sandbox.IsolationNone)
}

// sharesHost says whether a container has the host's rights, or a namespace of the host's.
func sharesHost(hc container.HostConfig) bool {
	return hc.Privileged || hc.PidMode.IsHost() || hc.IpcMode.IsHost() || hc.UTSMode.IsHost() || hc.UsernsMode.IsHost() || hc.CgroupnsMode.IsHost()
}

// isolationOf tells what stands between code and host with a runtime. What counts is the program that the engine starts, as far as it tells: a name says
// nothing where it leads to another one. A runtime that is not known is taken for what every runtime is at least.
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
