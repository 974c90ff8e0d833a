//go:build !linux

package gvisor

import (
	"runtime"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// Backend reports on this system that it cannot work here.
type Backend struct{ sandbox.Backend }

// New returns a backend whose Health says why it cannot be used.
func New(Options) (*Backend, error) {
	why := backend.NotSupported(Name, "run on "+runtime.GOOS, "use the docker backend, or a Linux machine")
	return &Backend{backend.Unavailable(Name, why)}, nil
}
