package backend

import (
	"context"
	"errors"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// Unavailable returns a backend that stands for one that cannot work here. Its Health reports err, and so does everything
// else that it is asked for. If err has sandbox.CodeNotSupported it never worked here, so there is nothing to list or end.
func Unavailable(name string, err error) sandbox.Backend { return unavailable{name, err} }

type unavailable struct {
	name string
	err  error
}

func (u unavailable) Name() string { return u.name }

func (unavailable) Capabilities(context.Context) sandbox.Capabilities { return sandbox.Capabilities{} }

func (u unavailable) Health(context.Context) sandbox.Health { return Unhealthy(u.err) }

func (u unavailable) Start(context.Context, sandbox.Spec) (sandbox.Machine, error) { return nil, u.err }

func (u unavailable) Attach(context.Context, string) (sandbox.Machine, error) { return nil, u.err }

func (u unavailable) Snapshot(context.Context, string, sandbox.SnapshotOptions) (*sandbox.Snapshot, error) {
	return nil, u.err
}

func (u unavailable) Restore(context.Context, *sandbox.Snapshot, sandbox.RestoreOptions) (sandbox.Machine, error) {
	return nil, u.err
}

func (u unavailable) DeleteSnapshot(context.Context, string) error { return u.unlessNever() }

func (u unavailable) Snapshots(context.Context) ([]*sandbox.Snapshot, error) {
	return nil, u.unlessNever()
}

func (u unavailable) Stop(context.Context, string) error { return u.unlessNever() }

func (u unavailable) List(context.Context) ([]sandbox.Info, error) { return nil, u.unlessNever() }

func (u unavailable) unlessNever() error {
	if errors.Is(u.err, sandbox.ErrNotSupported) {
		return nil
	}
	return u.err
}

// Unhealthy returns the Health of a backend that err keeps from working. A remedy has its own field
// there and is not part of the reason.
func Unhealthy(err error) sandbox.Health {
	if e, ok := errors.AsType[*v1.Error](err); ok {
		err = e
	}
	remedy, bare := v1.SplitRemedy(err)
	return sandbox.Health{Reason: bare.Error(), Remedy: remedy}
}
