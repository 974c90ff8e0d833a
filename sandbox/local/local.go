// Package local is the backend without isolation: the guest as a plain process of this
// machine, with this user's rights. It is for development, where it behaves like the others except that
// nothing holds the code back. It has no limits, no snapshots, no images and no mounts, and says so.
//
// Each sandbox has a directory of its own with the named pipes to its guest, so that another program finds it
// again after the one that made it has died.
package local

// Name is the backend's.
const Name = "local"

// Options says where things are.
type Options struct {
	// Dir holds the state of sandboxes; empty: our directory below the XDG data directory, or what stands in for it.
	Dir string
	// GuestPath is the guest's binary; empty: the one that came with this program.
	GuestPath string
}

// New returns the backend. Health reports whether it works.
func New(opts Options) *Backend { return newBackend(opts) }
