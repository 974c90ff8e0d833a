//go:build !linux

package gvisor

import (
	"context"
	"runtime"

	"github.com/recluse-dev/recluse/sandbox"
)

// Backend says on this system that it cannot work here.
type Backend struct{}

// New gives a backend whose Health says why it cannot be used.
func New(Options) (*Backend, error) { return &Backend{}, nil }

// Name implements sandbox.Backend.
func (*Backend) Name() string { return Name }

// Capabilities implements sandbox.Backend.
func (*Backend) Capabilities(context.Context) sandbox.Capabilities {
	return sandbox.Capabilities{Isolation: sandbox.IsolationKernel, Snapshots: sandbox.SnapshotsNone}
}

// Health implements sandbox.Backend.
func (*Backend) Health(context.Context) sandbox.Health {
	return sandbox.Health{Reason: "gVisor runs on Linux, and this is " + runtime.GOOS, Remedy: "use the docker backend, or a Linux machine"}
}

func (*Backend) refuse(op string) error {
	return sandbox.NotSupported(Name, op, "gVisor runs on Linux only")
}

// Start implements sandbox.Backend.
func (b *Backend) Start(context.Context, sandbox.Spec) (sandbox.Machine, error) {
	return nil, b.refuse("start sandbox")
}

// Attach implements sandbox.Backend.
func (b *Backend) Attach(context.Context, string) (sandbox.Machine, error) {
	return nil, b.refuse("attach")
}

// Snapshot implements sandbox.Backend.
func (b *Backend) Snapshot(context.Context, string, sandbox.SnapshotOptions) (*sandbox.Snapshot, error) {
	return nil, b.refuse("snapshot")
}

// Restore implements sandbox.Backend.
func (b *Backend) Restore(context.Context, *sandbox.Snapshot, sandbox.RestoreOptions) (sandbox.Machine, error) {
	return nil, b.refuse("restore")
}

// DeleteSnapshot implements sandbox.Backend.
func (b *Backend) DeleteSnapshot(context.Context, string) error { return b.refuse("delete snapshot") }

// Snapshots implements sandbox.Backend.
func (b *Backend) Snapshots(context.Context) ([]*sandbox.Snapshot, error) { return nil, nil }

// Stop implements sandbox.Backend.
func (b *Backend) Stop(context.Context, string) error { return b.refuse("stop") }

// List implements sandbox.Backend.
func (b *Backend) List(context.Context) ([]sandbox.Info, error) { return nil, nil }
