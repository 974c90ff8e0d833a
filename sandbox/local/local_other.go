//go:build !linux

package local

import (
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// Backend reports on this system that it cannot work here.
type Backend struct{ sandbox.Backend }

func newBackend(Options) *Backend {
	return &Backend{backend.Elsewhere(Name, "the guest is a Linux program", "use Linux, or a virtual machine with it")}
}
