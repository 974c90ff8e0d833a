package backendkit

import (
	"math"

	"github.com/recluse-dev/recluse/internal/guest/agent"
	"github.com/recluse-dev/recluse/sandbox"
)

// ImageConfig is what a root file system says about the code that runs in it.
type ImageConfig struct {
	Env []string
	Dir string // empty: the home directory
}

// GuestConfig returns what every guest is told at its birth. Code runs as the guest's own user; a backend
// sets another one, and the limits that the guest has to enforce.
func GuestConfig(r Record, state string, img ImageConfig) agent.Config {
	c := agent.Config{
		Token: r.Token, UID: -1, GID: -1, Home: sandbox.DefaultHome, Dir: sandbox.DefaultHome, State: state, Env: img.Env,
		OpenFiles: r.Spec.Limits.OpenFiles, CPUs: int(math.Ceil(r.Spec.Limits.CPUs)),
	}
	for _, dir := range []string{img.Dir, r.Spec.Dir} {
		if dir != "" {
			c.Dir = dir
		}
	}
	return c
}

// Tmpfs is a file system in memory. Its owner is root until a backend sets another one.
type Tmpfs struct {
	agent.Tmpfs
	Exec  bool // programs may be run from there
	Guest bool // it is the guest's own
}

// TmpfsLayout shares the disk of a sandbox out among its file systems in memory; state is the guest's own
// directory. Each file costs memory that no size counts, so their number is bounded by what they may take.
func TmpfsLayout(l sandbox.Limits, state string) []Tmpfs {
	const perFile = 2 << 10
	inodes := max(1024, l.Memory/8/perFile)
	fs := func(path, mode string, share int64) Tmpfs {
		return Tmpfs{Tmpfs: agent.Tmpfs{Path: path, Mode: mode, Size: l.Disk / share, Inodes: inodes / share}}
	}
	home, tmp, varTmp := fs(sandbox.DefaultHome, "0750", 2), fs("/tmp", "1777", 4), fs("/var/tmp", "1777", 16)
	home.Exec, tmp.Exec, varTmp.Exec = true, true, true // compiled parts of packages are loaded from there
	own := fs(state, "0755", 8)
	own.Guest = true
	return []Tmpfs{home, tmp, varTmp, fs("/dev/shm", "1777", 16), own}
}
