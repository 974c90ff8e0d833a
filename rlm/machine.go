package rlm

import (
	"context"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// Machine is where a run's code runs: a sandbox, or a session that has one.
type Machine interface {
	// ID names it for Sandboxes.Attach.
	ID() string
	// Cell runs Python in the live interpreter.
	Cell(ctx context.Context, c sandbox.Cell) (*sandbox.Verdict, error)
	// Run runs a command.
	Run(ctx context.Context, c sandbox.Command) (*sandbox.Verdict, error)
	// Files reads and writes its files.
	Files() sandbox.FileSystem
	// OnHostCall sets what answers the code's calls to the host.
	OnHostCall(f sandbox.HostFunc)
	// Snapshot writes it to disk.
	Snapshot(ctx context.Context, opts sandbox.SnapshotOptions) (*sandbox.Snapshot, error)
	// Close ends it.
	Close() error
}

// Judging is a Machine that may have a gate of its own, as a session has. Options.Gate is not asked about what runs there.
type Judging interface {
	// Judges reports whether it has.
	Judges() bool
}

// Reverting is a Machine that may not have the state that its caller left, as a session whose sandbox was lost, or that took the name of an
// earlier one.
type Reverting interface {
	// StateFrom is the moment that its state went back to while the run was there; nil: it did not.
	StateFrom() *time.Time
	// PreviousSession says how the session that had its name before has ended, if this one is new; "": it is not.
	PreviousSession() string
}

// Sandboxes makes the machines of a run and its children.
type Sandboxes interface {
	// Capabilities tells what they can do.
	Capabilities(ctx context.Context) sandbox.Capabilities
	// Open makes one.
	Open(ctx context.Context, spec sandbox.Spec) (Machine, error)
	// Attach finds one that still runs.
	Attach(ctx context.Context, id string) (Machine, error)
	// Restore makes one from a snapshot.
	Restore(ctx context.Context, snapshot string) (Machine, error)
	// DeleteSnapshot removes a snapshot; one that is not there is no error.
	DeleteSnapshot(ctx context.Context, snapshot string) error
}

// FromBackend makes machines with a backend, directly.
func FromBackend(b sandbox.Backend) Sandboxes { return backend{b} }

type backend struct{ b sandbox.Backend }

func (s backend) Capabilities(ctx context.Context) sandbox.Capabilities { return s.b.Capabilities(ctx) }

func (s backend) Open(ctx context.Context, spec sandbox.Spec) (Machine, error) {
	return machine(sandbox.Open(ctx, s.b, spec))
}

func (s backend) Attach(ctx context.Context, id string) (Machine, error) {
	return machine(sandbox.Attach(ctx, s.b, id))
}

func (s backend) Restore(ctx context.Context, snapshot string) (Machine, error) {
	all, err := s.b.Snapshots(ctx)
	if err != nil {
		return nil, err
	}
	for _, snap := range all {
		if snap.ID == snapshot {
			return machine(sandbox.Restore(ctx, s.b, snap, sandbox.RestoreOptions{}))
		}
	}
	return nil, &v1.Error{Code: v1.CodeNotFound, Op: "restore", Message: "there is no snapshot " + snapshot}
}

func (s backend) DeleteSnapshot(ctx context.Context, snapshot string) error {
	return s.b.DeleteSnapshot(ctx, snapshot)
}

// machine keeps a nil sandbox from becoming a Machine that is not nil.
func machine(sb *sandbox.Sandbox, err error) (Machine, error) {
	if err != nil {
		return nil, err
	}
	return sb, nil
}
