package backend

import (
	"context"
	"errors"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// Unavailable returns a placeholder for a backend that cannot work here. Its Health reports err, and its other methods
// return err. If the code of err is v1.CodeNotSupported, the backend never worked here, so there is nothing to list or
// end: List, Snapshots, Stop and DeleteSnapshot then succeed.
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

func (u unavailable) DeleteSnapshot(context.Context, string) error { return u.errIfEverWorked() }

func (u unavailable) Snapshots(context.Context) ([]*sandbox.Snapshot, error) {
	return nil, u.errIfEverWorked()
}

func (u unavailable) Stop(context.Context, string) error { return u.errIfEverWorked() }

func (u unavailable) List(context.Context) ([]sandbox.Info, error) { return nil, u.errIfEverWorked() }

// errIfEverWorked returns the error, or nil if the backend never worked here.
func (u unavailable) errIfEverWorked() error {
	if errors.Is(u.err, sandbox.ErrNotSupported) {
		return nil
	}
	return u.err
}

// Unhealthy returns the Health of a backend that does not work because of err. The remedy of err is in
// the field Remedy and not in the reason.
func Unhealthy(err error) sandbox.Health {
	if e, ok := errors.AsType[*v1.Error](err); ok {
		err = e
	}
	remedy, bare := v1.SplitRemedy(err)
	return sandbox.Health{Reason: bare.Error(), Remedy: remedy}
}
