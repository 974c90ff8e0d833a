package sandbox

import (
	"context"
	"io"
	"time"
)

// Backend makes sandboxes. It only has to start the guest in one and hand back a
// byte stream to it; everything that runs inside travels over that stream. What a
// backend cannot do it refuses with ErrNotSupported.
type Backend interface {
	// Name is the one word by which the backend is chosen.
	Name() string
	// Capabilities tells what it can do on this machine for this user.
	Capabilities(ctx context.Context) Capabilities
	// Health probes for real: it fails when a sandbox could not be made now.
	Health(ctx context.Context) Health
	// Start makes a sandbox from a spec whose defaults are filled in and runs the guest in it.
	Start(ctx context.Context, spec Spec) (Machine, error)
	// Attach finds a running sandbox of ours again, e.g. after the program that made it has died.
	Attach(ctx context.Context, id string) (Machine, error)
	// Snapshot writes a running sandbox to disk; it goes on unless opts say otherwise.
	Snapshot(ctx context.Context, id string, opts SnapshotOptions) (*Snapshot, error)
	// Restore makes a new sandbox from a snapshot.
	Restore(ctx context.Context, snap *Snapshot, opts RestoreOptions) (Machine, error)
	// DeleteSnapshot removes a snapshot from disk. One that is not there is no error.
	DeleteSnapshot(ctx context.Context, id string) error
	// Snapshots lists the snapshots on disk.
	Snapshots(ctx context.Context) ([]*Snapshot, error)
	// Stop ends a sandbox and removes everything of it. One that is not there is no error.
	Stop(ctx context.Context, id string) error
	// List gives the sandboxes of ours that exist, also those of earlier programs.
	List(ctx context.Context) ([]Info, error)
}

// Machine is a running sandbox as its backend sees it: a stream to the guest and
// the news that it has gone.
type Machine interface {
	// ID names the sandbox within its backend.
	ID() string
	// Spec is what it was made from.
	Spec() Spec
	// Stream is the byte stream to the guest. Closing it gives up the attachment,
	// never the sandbox.
	Stream() io.ReadWriteCloser
	// Token marks the beginning of an attachment on the stream; both sides know it,
	// code in the sandbox does not.
	Token() []byte
	// Generation differs between a sandbox and every copy of it.
	Generation() string
	// Gone is closed once the sandbox has ended, for whatever reason.
	Gone() <-chan struct{}
	// Cause says why it has gone; nil before that and after a Stop.
	Cause() error
	// MemoryKills counts processes that were killed for memory so far; ok is false
	// where that cannot be known.
	MemoryKills() (n uint64, ok bool)
}

// Info describes a sandbox that exists.
type Info struct {
	ID      string            `json:"id"`
	Backend string            `json:"backend"`
	Created time.Time         `json:"created"`
	Running bool              `json:"running"`
	Labels  map[string]string `json:"labels,omitempty"`
	Spec    Spec              `json:"spec"`
	PID     int               `json:"pid,omitempty"` // of the process that holds it, where there is one
}

// SnapshotOptions says how to take a snapshot.
type SnapshotOptions struct {
	Labels map[string]string
	// Stop ends the sandbox once the snapshot is safe on disk.
	Stop bool
	// Held names the files inside that live processes have open or mapped. Sandbox.Snapshot
	// fills it in from the guest; a backend notes those that lie on the host, because a
	// snapshot does not hold their content.
	Held []string
}

// Snapshot is a sandbox at rest: memory, processes and files.
type Snapshot struct {
	ID      string            `json:"id"`
	Backend string            `json:"backend"`
	Parent  string            `json:"parent,omitempty"` // the sandbox it was taken from
	Created time.Time         `json:"created"`
	Size    int64             `json:"size"` // bytes on disk
	Spec    Spec              `json:"spec"`
	Labels  map[string]string `json:"labels,omitempty"`
	Engine  string            `json:"engine"` // hash of the engine that wrote it and must read it
	Guest   string            `json:"guest"`
}

// RestoreOptions says what differs from the snapshot.
type RestoreOptions struct {
	Labels map[string]string // instead of the snapshot's, when not nil
	Env    map[string]string // on top of the snapshot's
}
