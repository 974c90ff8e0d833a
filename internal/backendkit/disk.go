package backendkit

import (
	"slices"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/guest/launch"
	"github.com/recluse-dev/recluse/sandbox"
)

// InstallEnv makes package managers install into /usr/local. Debian and others reserve the system's Python for their
// own packages (EXTERNALLY-MANAGED), and npm installs beside itself, such as into /usr.
var InstallEnv = []string{"PIP_BREAK_SYSTEM_PACKAGES=1", "NPM_CONFIG_PREFIX=/usr/local"}

// OnDisk completes the guest's configuration of a sandbox whose root file system is writable and on disk. state is the
// guest's own directory.
func OnDisk(c *launch.Config, user v1.User, l sandbox.Limits, state string) {
	c.Env = append(slices.Clone(InstallEnv), c.Env...)
	c.Dirs = DirsOnDisk(user, int(l.Files()/2))
	c.Tmpfs = TmpfsBesideDisk(l, state)
}

// DirsOnDisk returns the directories that code may write to on a writable root. Programs install into /usr/local and
// /opt; the rest of the system belongs to root, as everywhere. deep is the number of directories below /usr/local that
// get the owner at most.
func DirsOnDisk(user v1.User, deep int) []launch.Dir {
	return []launch.Dir{
		{Path: v1.DefaultHome, UID: user.UID, GID: user.GID},
		{Path: "/tmp", Mode: "1777"},
		{Path: "/var/tmp", Mode: "1777"},
		{Path: "/usr/local", UID: user.UID, GID: user.GID, Optional: true, Deep: deep},
		{Path: "/opt", UID: user.UID, GID: user.GID},
		{Path: "/srv", UID: user.UID, GID: user.GID, Optional: true},
		{Path: "/etc/hosts", UID: user.UID, GID: user.GID, Optional: true},
		{Path: "/root", Mode: "0700", Optional: true},
	}
}

// sharedMemory is the share of the memory, 1/sharedMemory, that files in /dev/shm may use.
const sharedMemory = 4

// TmpfsBesideDisk returns the file systems in memory of a sandbox with a writable root. state is the guest's own
// directory.
func TmpfsBesideDisk(l sandbox.Limits, state string) []launch.Tmpfs {
	return []launch.Tmpfs{
		{Path: "/dev/shm", Mode: "1777", Size: l.Memory / sharedMemory, Inodes: l.Files() / 8},
		{Path: state, Mode: "0755", Size: v1.MinScratch, Inodes: l.Files() / 4},
	}
}
