//go:build !linux

package local

import (
	"runtime"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// Backend reports on this system that it cannot work here.
type Backend struct{ sandbox.Backend }

func newBackend(Options) *Backend {
	why := backend.NotSupported(Name, "run on "+runtime.GOOS, "use Linux, or a virtual machine with it")
	return &Backend{backend.Unavailable(Name, why)}
}
