//go:build !linux

package local

import (
	"context"

	"github.com/recluse-dev/recluse/sandbox"
)

const linuxOnly = "the guest is a Linux program"

func newBackend(Options) sandbox.Backend { return elsewhere{} }

// elsewhere is the backend on systems where the guest does not run.
type elsewhere struct{}

func refuse(op string) error { return sandbox.NotSupported(Name, op, linuxOnly) }

func (elsewhere) Name() string { return Name }

func (elsewhere) Capabilities(context.Context) sandbox.Capabilities {
	return sandbox.Capabilities{Snapshots: sandbox.SnapshotsNone, Notes: []string{linuxOnly}}
}

func (elsewhere) Health(context.Context) sandbox.Health {
	return sandbox.Health{Reason: linuxOnly, Remedy: "use Linux, or a virtual machine with it"}
}

func (elsewhere) Start(context.Context, sandbox.Spec) (sandbox.Machine, error) {
	return nil, refuse("start sandbox")
}

func (elsewhere) Attach(context.Context, string) (sandbox.Machine, error) {
	return nil, refuse("attach")
}

func (elsewhere) Snapshot(context.Context, string, sandbox.SnapshotOptions) (*sandbox.Snapshot, error) {
	return nil, refuse("snapshot")
}

func (elsewhere) Restore(context.Context, *sandbox.Snapshot, sandbox.RestoreOptions) (sandbox.Machine, error) {
	return nil, refuse("restore")
}

func (elsewhere) DeleteSnapshot(context.Context, string) error { return nil }

func (elsewhere) Snapshots(context.Context) ([]*sandbox.Snapshot, error) { return nil, nil }

func (elsewhere) Stop(context.Context, string) error { return nil }

func (elsewhere) List(context.Context) ([]sandbox.Info, error) { return nil, nil }
