// Package backend is for programs that choose a backend, and for authors of one.
//
// # Choosing
//
// [Select] probes several backends and returns the first that works and meets the [Requirements],
// with the reason for each that it passed over. It never chooses running without isolation silently.
//
// # Writing a backend
//
// A backend implements [sandbox.Backend]: it starts the guest (cmd/recluse-guest) inside something
// and returns a [sandbox.Machine], a byte stream to it. Everything that runs inside travels over that
// stream, so a backend knows nothing of commands, cells or files. It may also implement [Pauser],
// [Labeler], [Sharer], [Answerer] and [Surveyor], and its machines [Witness]. A request that it cannot fulfil it
// refuses with [NotSupported], never by ignoring it.
//
// internal/backendkit has what most backends need; sandbox/sandboxtest is the feature suite that a new backend joins.
//
// The interfaces Backend and Machine are in package sandbox, because Open takes the one and gets the other from it.
package backend

import (
	"context"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// Pauser is a backend that can freeze a sandbox in memory.
type Pauser interface {
	// Pause stops everything inside until Resume. Pausing twice is no error.
	Pause(ctx context.Context, id string) error
	// Resume lets a paused sandbox continue. It does nothing to one that runs.
	Resume(ctx context.Context, id string) error
}

// Labeler is a backend that can change the labels of an existing sandbox, as when one from a pool gets its owner's.
type Labeler interface {
	// Label sets the labels that List returns.
	Label(ctx context.Context, id string, labels map[string]string) error
}

// Sharer is a backend that can show single files of the host inside, without a copy where the file systems allow it.
type Sharer interface {
	// Share makes a regular file of the host readable inside as name below sandbox.SharedDir: by a link if possible,
	// else by a copy on the host's disk. The file must not be changed in place while the sandbox lives.
	Share(ctx context.Context, id, file, name string) error
}

// Answerer is a backend that can report its health without making a sandbox.
type Answerer interface {
	// Answers is Health without a trial.
	Answers(ctx context.Context) sandbox.Health
}

// Witness is a machine that notices incidents.
type Witness interface {
	// OnIncident sets the function that receives incidents, one after the other. It receives those
	// that happened before at once.
	OnIncident(f func(sandbox.Incident))
}

// Frozen is a machine that notices when somebody else pauses its sandbox.
type Frozen interface {
	// Frozen returns the error for calls that would begin now, or nil if the sandbox runs.
	Frozen() error
}

// Surveyor is a backend that can list sandboxes whoever made them, also those whose own server has lost its records. List returns those
// of this backend's own directory or instance only.
type Surveyor interface {
	// Survey lists the sandboxes of all programs of this user, as far as this backend can end them.
	Survey(ctx context.Context) ([]Surveyed, error)
	// EndUnheld ends a sandbox that Survey returned. If a program holds it, the error has the code busy.
	EndUnheld(ctx context.Context, id string) error
}

// Surveyed is a sandbox, and the program that answers for it.
type Surveyed struct {
	sandbox.Info
	Owner int  // pid of the program that must end it
	Held  bool // the owner lives, or a program is attached, or neither can be known, as on another machine
}

// NotSupported returns the error of a backend that cannot do op.
func NotSupported(backend, op, remedy string) error {
	return &v1.Error{
		Code: v1.CodeNotSupported, Op: op, Message: "the " + backend + " backend cannot do this", Remedy: remedy,
	}
}
