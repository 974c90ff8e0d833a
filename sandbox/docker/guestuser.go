package docker

import "slices"

// The host's kernel protects a container's first process from signals of its own user; gVisor's does not. So with a kernel of its own a sandbox
// has a guest that is root inside, as it is with our own gVisor, and code can neither stop it nor take its descriptors away. The host's
// kernel never sees these rights. On that kernel itself nobody inside has any.

// guestCapabilities are what the guest needs to run code as another user, and to look after it. Nothing that it runs has them.
var guestCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_SYS_PTRACE", "CAP_SYS_RESOURCE",
}

// ownGuest says that the guest is another user than code. Podman gives file systems in memory to the container's user alone.
func (f *facts) ownGuest() bool { return f.userSpace() && !f.podman }

// grant adds the guest's capabilities to those that a host config names, without which it could not run anything.
func (f *facts) grant(caps []string) []string {
	if !f.ownGuest() {
		return caps
	}
	for _, c := range guestCapabilities {
		if !slices.Contains(caps, c) {
			caps = append(caps, c)
		}
	}
	return caps
}
