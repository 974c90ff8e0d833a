package docker

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"

	"github.com/recluse-dev/recluse/internal/dockerengine"
	"github.com/recluse-dev/recluse/internal/guest/agent"
)

// The host's kernel protects a container's first process from signals of its own user; gVisor's does not. So with a kernel of its own a sandbox
// has a guest that is root inside, as it is with our own gVisor, and code can neither stop it nor take its descriptors away. The host's
// kernel never sees these rights. On that kernel itself nobody inside has any.

// guestCapabilities are what the guest needs to run code as another user, to look after it, and to mount what its files are in (SYS_ADMIN). Nothing that
// it runs has them.
var guestCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_SYS_ADMIN", "CAP_SYS_PTRACE",
	"CAP_SYS_RESOURCE",
}

// ownGuest reports that the guest is another user than code. Podman gives file systems in memory to the container's
// user alone.
func ownGuest(f *dockerengine.Facts) bool { return f.UserSpace() && !f.Podman }

// grant adds the guest's capabilities to those that a host config names, without which it could not run anything.
func grant(f *dockerengine.Facts, caps []string) []string {
	if !ownGuest(f) {
		return caps
	}
	for _, c := range guestCapabilities {
		if !slices.Contains(caps, c) {
			caps = append(caps, c)
		}
	}
	return caps
}

// count gives the file systems in memory that the guest mounts once more, over the engine's: gVisor does not hear from an engine how many files
// there may be in them, and a million would cost the sandbox. Where a host config, a volume or the image has put something else, that stays.
func (p *plan) count(hc *container.HostConfig) []agent.Tmpfs {
	if !ownGuest(p.facts) {
		return nil
	}
	ours, others := p.tmpfs(), targets(*hc)
	for target := range hc.Tmpfs {
		if ours[target] == "" {
			others = append(others, target)
		}
	}
	if ic := p.image.Config; ic != nil {
		others = slices.AppendSeq(others, maps.Keys(ic.Volumes))
	}
	var all []agent.Tmpfs
	for _, m := range p.inMemory() {
		taken := slices.ContainsFunc(others, func(target string) bool {
			target = path.Clean("/" + target)
			return target == m.Path || strings.HasPrefix(target, m.Path+"/")
		})
		if !taken && hc.Tmpfs[m.Path] == ours[m.Path] {
			all = append(all, m.Tmpfs)
		}
	}
	return all
}
