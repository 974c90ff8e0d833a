//go:build !linux

package vm

import (
	"context"
	"runtime"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// Backend is a backend that is not available on this system.
type Backend struct{ sandbox.Backend }

var errSystem = backend.NotSupported(Name, "run on "+runtime.GOOS, "use a Linux machine with KVM")

// New returns a backend that reports why it cannot be used.
func New(Options) (*Backend, error) { return &Backend{backend.Unavailable(Name, errSystem)}, nil }

// Close does nothing.
func (b *Backend) Close() error { return nil }

// Setup returns an error.
func (b *Backend) Setup(context.Context, SetupOptions) (*Prepared, error) { return nil, errSystem }
