package rlm

import (
	"context"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// Sandbox runs the code of a run. It is a sandbox of a backend, or a session with its sandbox.
type Sandbox interface {
	// ID returns the ID for Sandboxes.Attach.
	ID() string
	// Cell runs Python in the live interpreter.
	Cell(ctx context.Context, c sandbox.Cell) (*sandbox.Verdict, error)
	// Run runs a command.
	Run(ctx context.Context, c sandbox.Command) (*sandbox.Verdict, error)
	// Files returns the file system of the sandbox.
	Files() sandbox.FileSystem
	// OnHostCall sets the function that answers host calls of the code.
	OnHostCall(f sandbox.HostFunc)
	// Snapshot writes a snapshot to disk.
	Snapshot(ctx context.Context, opts sandbox.SnapshotOptions) (*sandbox.Snapshot, error)
	// Close ends the sandbox.
	Close() error
}

// Judging is implemented by a Sandbox that may have its own gate, such as a session. Options.Gate does not judge the
// code that runs in it.
type Judging interface {
	// Judges reports whether the sandbox has its own gate.
	Judges() bool
}

// Reverting is implemented by a Sandbox that may have lost state since its last use, such as a session whose sandbox
// was lost, or a new session with the name of an ended one.
type Reverting interface {
	// StateFrom returns the time from which the state is, if the state was reverted during the run; else nil.
	StateFrom() *time.Time
	// PreviousSession returns how the previous session of the same name ended, if this session is new; else "".
	PreviousSession() string
}

// Sandboxes makes the sandboxes of a run and its child runs.
type Sandboxes interface {
	// Capabilities returns the capabilities of the sandboxes.
	Capabilities(ctx context.Context) sandbox.Capabilities
	// Open makes a sandbox.
	Open(ctx context.Context, spec sandbox.Spec) (Sandbox, error)
	// Attach attaches a running sandbox.
	Attach(ctx context.Context, id string) (Sandbox, error)
	// Restore makes a sandbox from a snapshot.
	Restore(ctx context.Context, snapshot string) (Sandbox, error)
	// DeleteSnapshot removes a snapshot. A missing snapshot is not an error.
	DeleteSnapshot(ctx context.Context, snapshot string) error
}

// FromBackend returns Sandboxes that makes sandboxes directly with a backend, without sessions.
func FromBackend(b sandbox.Backend) Sandboxes { return backend{b} }

type backend struct{ b sandbox.Backend }

func (s backend) Capabilities(ctx context.Context) sandbox.Capabilities { return s.b.Capabilities(ctx) }

func (s backend) Open(ctx context.Context, spec sandbox.Spec) (Sandbox, error) {
	return asSandbox(sandbox.Open(ctx, s.b, spec))
}

func (s backend) Attach(ctx context.Context, id string) (Sandbox, error) {
	return asSandbox(sandbox.Attach(ctx, s.b, id))
}

func (s backend) Restore(ctx context.Context, snapshot string) (Sandbox, error) {
	all, err := s.b.Snapshots(ctx)
	if err != nil {
		return nil, err
	}
	for _, snap := range all {
		if snap.ID == snapshot {
			return asSandbox(sandbox.Restore(ctx, s.b, snap, sandbox.RestoreOptions{}))
		}
	}
	return nil, &v1.Error{Code: v1.CodeNotFound, Op: "restore", Message: "snapshot " + snapshot + " not found"}
}

func (s backend) DeleteSnapshot(ctx context.Context, snapshot string) error {
	return s.b.DeleteSnapshot(ctx, snapshot)
}

// asSandbox converts sb to a Sandbox. After an error it returns a nil interface, not one that holds a nil pointer.
func asSandbox(sb *sandbox.Sandbox, err error) (Sandbox, error) {
	if err != nil {
		return nil, err
	}
	return sb, nil
}
