// Package gvisor runs sandboxes in gVisor, a kernel of its own in user space, on plain Linux: as root or as an ordinary
// user, without a daemon, KVM or an image.
//
// The engine program (gVisor's runsc, built from cmd/recluse-engine) is driven by its command line. All truth about a
// sandbox is in files: the engine's state directory, the sandbox's own directory with its bundle and named pipes, and its
// cgroups; so any process can take over a sandbox that another one started.
package gvisor

// Name is what this backend is called.
const Name = "gvisor"

// Options says where the backend keeps things. The zero Options are right for most.
type Options struct {
	// DataDir holds sandboxes, snapshots and templates; empty: the user's data directory.
	DataDir string
	// CacheDir holds programs and images; empty: the user's cache directory.
	CacheDir string
	// Engine and Guest are the paths of recluse-engine and recluse-guest; empty: those that RECLUSE_ENGINE and RECLUSE_GUEST name, or that
	// this program has embedded, beside it or on PATH. They are copied into the cache and run from there.
	Engine, Guest string
	// NoTemplates boots every sandbox instead of restoring a warm one.
	NoTemplates bool
	// Debug makes the engine write its logs into the sandbox's directory.
	Debug bool
	// AsUser makes root run sandboxes the way an ordinary user does: in a user namespace, without cgroups.
	AsUser bool
	// AllowMounts are directories of the host that may be mounted, with what is below them, although the rules for mounts refuse a place
	// above them, such as /root.
	AllowMounts []string
	// Progress hears of long work, such as an image being unpacked; nil: nobody.
	Progress func(what string, done, total int64)
}
