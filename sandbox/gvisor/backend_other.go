//go:build !linux

package gvisor

import (
	"runtime"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// Backend is a backend that is not available on this system.
type Backend struct{ sandbox.Backend }

// New returns a backend whose Health reports why it cannot be used.
func New(Options) (*Backend, error) {
	why := backend.NotSupported(Name, "run on "+runtime.GOOS, "use the docker backend, or a Linux machine")
	return &Backend{backend.Unavailable(Name, why)}, nil
}
