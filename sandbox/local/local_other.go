//go:build !linux

package local

import (
	"runtime"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// Backend is a backend that is not available on this system.
type Backend struct{ sandbox.Backend }

func newBackend(Options) *Backend {
	why := backend.NotSupported(Name, "run on "+runtime.GOOS, "use Linux, or a virtual machine with Linux")
	return &Backend{backend.Unavailable(Name, why)}
}
