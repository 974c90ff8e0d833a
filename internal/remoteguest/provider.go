// Package remoteguest is the backend for services that rent sandboxes. A service only has to make a sandbox, store a
// file in it, run a process and pass on its standard input and output: see Provider. The package uploads the guest by
// its hash, starts it, carries its byte stream over connections that break (package carrier), extends the sandbox while
// it is in use, and ends what dead programs have left.
//
// Nothing secret is given to the service but the guest's configuration, by the standard input of its process. Labels at
// the service hold the instance and the ID of the sandbox only.
package remoteguest

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/recluse-dev/recluse/internal/guest/carrier"
	"github.com/recluse-dev/recluse/sandbox"
)

// Labels of our sandboxes at a service.
const (
	LabelInstance = "recluse_instance"
	LabelSandbox  = "recluse_sandbox"
)

// Ref names a sandbox at its service.
type Ref struct {
	ID     string `json:"id"`
	Token  string `json:"token,omitempty"` // for access to the inside
	Domain string `json:"domain,omitempty"`
}

// Remote is a sandbox that a service lists.
type Remote struct {
	Ref
	Labels map[string]string
	Paused bool
}

// Create is a request for a sandbox.
type Create struct {
	Spec    sandbox.Spec
	Labels  map[string]string
	Timeout time.Duration // after which the service ends the sandbox, unless it is extended
	From    string        // ID of a snapshot at the service; empty: the configured template
}

// Provider is a service. Errors are *v1.Error. The code of a sandbox that does not exist is not_found, of a refused
// key unauthorized.
type Provider interface {
	Name() string
	// Arch is the processor of the service's machines, as GOARCH.
	Arch() string
	Capabilities() sandbox.Capabilities
	// Check refuses what the service cannot do.
	Check(spec sandbox.Spec) error
	// Probe checks address and key without making a sandbox.
	Probe(ctx context.Context) error
	// Create makes a sandbox. After an error that is Unsure, there may be one nevertheless.
	Create(ctx context.Context, c Create) (Ref, error)
	// Find lists the sandboxes that have all the labels.
	Find(ctx context.Context, labels map[string]string) ([]Remote, error)
	// Kill ends a sandbox. A missing one is no error.
	Kill(ctx context.Context, ref Ref) error
	// Upload stores a file, and makes its directory.
	Upload(ctx context.Context, ref Ref, path string, r io.Reader, size int64) error
	// Start runs a shell script as a process without a time limit, and connects to it.
	Start(ctx context.Context, ref Ref, script string) (carrier.Pipe, error)
	// Connect connects to the process again. Without the process, the error is ErrExited.
	Connect(ctx context.Context, ref Ref) (carrier.Pipe, error)
}

// RemoteSnapshot is a snapshot that a service lists.
type RemoteSnapshot struct {
	ID    string
	Names []string
}

// Extender is a provider that can move the end of a sandbox. Without it, the service-side timeout is the life of a
// sandbox.
type Extender interface {
	// Extend moves the end of a sandbox to a time from now.
	Extend(ctx context.Context, ref Ref, timeout time.Duration) error
}

// Pricer is a provider whose price depends on the spec.
type Pricer interface {
	// PerHour returns the estimated price in dollars per hour.
	PerHour(spec sandbox.Spec) float64
}

// Snapshotter is a provider with snapshots of memory.
type Snapshotter interface {
	// Snapshot copies a running sandbox and returns the ID of the copy.
	Snapshot(ctx context.Context, ref Ref, name string) (string, error)
	// Snapshots lists the snapshots of the account.
	Snapshots(ctx context.Context) ([]RemoteSnapshot, error)
	// DeleteSnapshot removes it. A missing one is no error.
	DeleteSnapshot(ctx context.Context, id string) error
}

// ErrExited means that the guest's process has ended. ExitError has its status.
var ErrExited = errors.New("the guest's process has ended")

// ExitError is ErrExited with the status that the service reports, and the last line of the process's error output.
type ExitError struct {
	Status string
	Code   int
	Text   string
}

// Error implements error.
func (e *ExitError) Error() string {
	if e.Text != "" {
		return ErrExited.Error() + ": " + e.Status + ": " + e.Text
	}
	return ErrExited.Error() + ": " + e.Status
}

// Is implements errors.Is.
func (e *ExitError) Is(target error) bool { return target == ErrExited }

// UnsureError is the error of a call that may have had an effect: the service did not answer, or failed.
type UnsureError struct{ Err error }

// Error implements error.
func (e *UnsureError) Error() string { return e.Err.Error() }

// Unwrap returns the error of the call.
func (e *UnsureError) Unwrap() error { return e.Err }
