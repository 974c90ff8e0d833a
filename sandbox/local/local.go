// Package local is the backend without isolation: the guest is a plain process of this machine, with the rights of this
// user. It is for development. It behaves like the other backends, but nothing restricts the code. It has no limits, no
// snapshots, no images and no mounts, and its capabilities report that. A volume appears as a link in the home directory.
//
// Each sandbox has its own directory with the named pipes to its guest, so that another program can find it after the
// program that made it has died.
package local

// Name is the name of this backend.
const Name = "local"

// Options configures the backend.
type Options struct {
	// Dir is the directory of the state of sandboxes. Empty: our directory below the XDG data directory, or its
	// default.
	Dir string
	// GuestPath is the guest's binary. Empty: the binary bundled with this program.
	GuestPath string
	// UnlimitedDisk allows volumes, whose size cannot be limited.
	UnlimitedDisk bool
}

// New returns the backend. Health reports whether it works.
func New(opts Options) *Backend { return newBackend(opts) }
