package backendkit

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/diskuse"
	"github.com/recluse-dev/recluse/internal/guest/launch"
	"github.com/recluse-dev/recluse/sandbox"
)

// InstallEnv makes package managers install into /usr/local. Debian and others reserve the system's Python for their
// own packages (EXTERNALLY-MANAGED), and npm installs beside itself, such as into /usr.
var InstallEnv = []string{"PIP_BREAK_SYSTEM_PACKAGES=1", "NPM_CONFIG_PREFIX=/usr/local"}

// OnDisk completes the guest's configuration of a sandbox whose root file system is writable and on disk. state is the
// guest's own directory.
func OnDisk(c *launch.Config, user v1.User, spec sandbox.Spec, state string) {
	c.Env = append(slices.Clone(InstallEnv), c.Env...)
	// The owner of a directory of the host must not change, and code must reach what is mounted below /root.
	c.Dirs = slices.DeleteFunc(DirsOnDisk(user, int(spec.Limits.Files()/2)), func(d launch.Dir) bool {
		return slices.ContainsFunc(spec.Mounts, func(m sandbox.Mount) bool {
			return Below(d.Path, m.Path) || d.Path == "/root" && Below(m.Path, d.Path)
		})
	})
	c.Tmpfs = TmpfsBesideDisk(spec.Limits, state)
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

// diskKinds are the kinds of what backends keep, by the name of its directory.
var diskKinds = map[string]v1.DiskKind{
	"sandboxes": v1.DiskSandbox,
	"snapshots": v1.DiskSnapshot,
	"templates": v1.DiskTemplate,
	"roots":     v1.DiskRoot,
}

// DiskUse returns what the directory of a backend takes.
func DiskUse(dir, backend string) []v1.DiskUse {
	var all []v1.DiskUse
	add := func(kind v1.DiskKind, name, path string) {
		all = append(all, v1.DiskUse{Kind: kind, Name: name, Backend: backend, Bytes: diskuse.Tree(path)})
	}
	tops, _ := os.ReadDir(dir) // a missing directory takes nothing
	for _, top := range tops {
		path := filepath.Join(dir, top.Name())
		kind, ok := diskKinds[top.Name()]
		if !ok {
			add(v1.DiskCache, top.Name(), path)
			continue
		}
		entries, _ := os.ReadDir(path)
		for _, e := range entries {
			of := kind
			switch {
			case e.Name() == ".lock":
				continue
			case strings.HasPrefix(e.Name(), "."): // being written or removed
				of = v1.DiskLeft
			}
			add(of, e.Name(), filepath.Join(path, e.Name()))
		}
	}
	return all
}
