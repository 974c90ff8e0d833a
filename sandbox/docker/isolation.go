package docker

import (
	"github.com/moby/moby/api/types/container"

	"github.com/recluse-dev/recluse/internal/dockerengine"
	"github.com/recluse-dev/recluse/sandbox"
)

// level is the isolation that a sandbox really has.
func (b *Backend) level(f *dockerengine.Facts) sandbox.Isolation {
	hc, err := b.opts.hostConfig()
	if err != nil || container.NetworkMode(b.network()).IsHost() || sharesHost(hc) {
		return sandbox.IsolationNone
	}
	if len(b.opts.HostConfig) == 0 && !b.opts.UnsafeRoot && !b.opts.UnsafeHostConfig {
		return f.Level
	}
	return max(f.Level-1, sandbox.IsolationNone)
}

// sharesHost says whether a container has the host's rights, or a namespace of the host's.
func sharesHost(hc container.HostConfig) bool {
	return hc.Privileged || hc.PidMode.IsHost() || hc.IpcMode.IsHost() || hc.UTSMode.IsHost() || hc.UsernsMode.IsHost() || hc.CgroupnsMode.IsHost()
}
