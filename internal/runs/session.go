package runs

import (
	"context"

	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// machine is a session as the place where a run works.
type machine struct {
	*session.Session
	files *sandbox.Files
}

// inSession makes a session a machine. It stays awake until release is called.
func inSession(ctx context.Context, s *session.Session) (m rlm.Machine, release func(), err error) {
	f, done, err := s.Files(ctx)
	if err != nil {
		return nil, nil, err
	}
	return machine{s, f}, done, nil
}

// ID names it. No backend knows the name: a run that is resumed begins in a sandbox of its own.
func (m machine) ID() string { return "session " + m.Session.ID() }

// Files implements rlm.Machine.
func (m machine) Files() *sandbox.Files { return m.files }

// Judges says that sessions have a gate of their own, and a mode for it.
func (machine) Judges() bool { return true }

// Snapshot is refused: those of a session are its owner's.
func (m machine) Snapshot(context.Context, sandbox.SnapshotOptions) (*sandbox.Snapshot, error) {
	return nil, &sandbox.Error{Code: sandbox.CodeNotSupported, Op: "take snapshot", Message: "a run takes no snapshots of a session"}
}

// Close does nothing: the session stays.
func (machine) Close() error { return nil }
