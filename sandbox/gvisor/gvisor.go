// Package gvisor runs sandboxes in gVisor, a kernel in user space, on plain Linux. It works as root or as an ordinary
// user, and needs no daemon, no KVM and no image.
//
// The backend runs the engine program (gVisor's runsc, built from cmd/recluse-engine) by its command line. The whole
// state of a sandbox is in files: the engine's state directory, the sandbox's own directory with its bundle and named
// pipes, and its cgroups. Therefore any process can take over a sandbox that another process started.
package gvisor

import "github.com/recluse-dev/recluse/sandbox"

// Name is the name of this backend.
const Name = "gvisor"

// Options configures the backend. The zero Options suit most programs.
type Options struct {
	// DataDir is the directory of sandboxes, snapshots and templates. Empty: the data directory of the user.
	DataDir string
	// CacheDir is the directory of programs and images. Empty: the cache directory of the user.
	CacheDir string
	// Engine and Guest are the paths of recluse-engine and recluse-guest. Empty: the paths in RECLUSE_ENGINE and
	// RECLUSE_GUEST, or else the programs that are embedded in this program, beside it, or on PATH. The programs are
	// copied into the cache and run from there.
	Engine, Guest string
	// NoTemplates boots every sandbox instead of restoring it from a warm template.
	NoTemplates bool
	// Debug makes the engine write its logs into the directory of the sandbox.
	Debug bool
	// AsUser makes root run sandboxes like an ordinary user: in a user namespace, without cgroups.
	AsUser bool
	// AllowMounts are host directories that may be mounted, with everything below them, although the rules for mounts
	// refuse a parent directory, such as /root.
	AllowMounts []string
	// UnlimitedDisk allows volumes whose size cannot be limited, such as those of an ordinary user.
	UnlimitedDisk bool
	// Network is the operator's part of the network of sandboxes.
	Network sandbox.NetworkOptions
	// Progress receives the progress of long work, such as unpacking an image. It may be nil.
	Progress func(what string, done, total int64)
}
