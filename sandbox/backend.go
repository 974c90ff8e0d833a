package sandbox

import (
	"context"
	"io"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Backend makes sandboxes. It starts the guest in a sandbox and returns a byte stream to
// the guest. All operations use that stream. A backend returns ErrNotSupported for
// what it cannot do.
type Backend interface {
	// Name returns the word that selects the backend in flags and configuration.
	Name() string
	// Capabilities returns what the backend can do on this machine for this user.
	Capabilities(ctx context.Context) Capabilities
	// Health runs a real probe: it fails if a sandbox could not be made now.
	Health(ctx context.Context) Health
	// Start makes a sandbox and runs the guest in it. The defaults of spec are filled in.
	Start(ctx context.Context, spec Spec) (Machine, error)
	// Attach connects to a running sandbox of this instance, e.g. after the program that made it
	// has died.
	Attach(ctx context.Context, id string) (Machine, error)
	// Snapshot writes a running sandbox to disk. The sandbox continues to run, unless opts.Stop
	// is set.
	Snapshot(ctx context.Context, id string, opts SnapshotOptions) (*Snapshot, error)
	// Restore makes a new sandbox from a snapshot.
	Restore(ctx context.Context, snap *Snapshot, opts RestoreOptions) (Machine, error)
	// DeleteSnapshot removes a snapshot from disk. It returns nil if there is no such snapshot.
	DeleteSnapshot(ctx context.Context, id string) error
	// Snapshots lists the snapshots on disk.
	Snapshots(ctx context.Context) ([]*Snapshot, error)
	// Stop ends a sandbox and removes everything of it. It returns nil if there is no such sandbox.
	Stop(ctx context.Context, id string) error
	// List returns the existing sandboxes of this instance, including those that earlier programs
	// made.
	List(ctx context.Context) ([]Info, error)
}

// Machine is a running sandbox as its backend sees it: a byte stream to the guest, and
// a channel that reports the end of the sandbox.
type Machine interface {
	// ID returns the name of the sandbox, unique within its backend.
	ID() string
	// Spec returns the spec that the sandbox was made from.
	Spec() Spec
	// Stream returns the byte stream to the guest. Closing it ends the attachment,
	// never the sandbox.
	Stream() io.ReadWriteCloser
	// Token returns the secret that marks the beginning of an attachment on the stream. The host
	// and the guest know it, code in the sandbox does not.
	Token() []byte
	// Generation returns a value that differs between a sandbox and every copy of it.
	Generation() string
	// Gone returns a channel that is closed once the sandbox has ended, for whatever reason.
	Gone() <-chan struct{}
	// Cause returns why the sandbox has ended. It is nil while the sandbox runs and after a Stop.
	Cause() error
	// MemoryKills returns the number of processes that were OOM-killed so far. ok is false
	// if the backend cannot know it.
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
	PID     int               `json:"pid,omitempty"` // of the process that runs the sandbox, if there is one
}

// SnapshotOptions are the options of Snapshot.
type SnapshotOptions struct {
	Labels map[string]string
	// Stop ends the sandbox once the snapshot is complete on disk.
	Stop bool
	// Held lists the files inside that live processes have open or mapped. Sandbox.Snapshot
	// queries the guest for them. A backend records those that are files of the host, because a
	// snapshot does not contain their content.
	Held []string
	// Network is the policy of the snapshot; Sandbox.Snapshot sets it to the current one. Nil: that of the spec.
	Network *v1.Network
}

// Snapshot is a sandbox written to disk: files, or files, processes and memory.
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

// RestoreOptions are the values that differ from those of the snapshot.
type RestoreOptions struct {
	Labels map[string]string // replace the snapshot's labels, if not nil
	Env    map[string]string // added to the snapshot's environment; replace values of the same name
	// Copy means that the original of the snapshot goes on. The copy gets its volumes read-only, except shared ones.
	Copy bool
	// Network, if set, replaces the policy of the snapshot. It is in force before code inside can connect.
	Network *NetworkState
}
