package runs

import (
	"context"
	"sync/atomic"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// machine is a session as the place where a run works.
type machine struct {
	*session.Session
	from     atomic.Pointer[time.Time] // what its state went back to
	previous atomic.Pointer[string]    // how the session of its name before it has ended
}

// inSession makes a session a machine. It stays awake until release is called.
func inSession(ctx context.Context, s *session.Session) (m *machine, release func(), err error) {
	release, err = s.KeepAwake(ctx)
	if err != nil {
		return nil, nil, err
	}
	return &machine{Session: s}, release, nil
}

// ID names it. No backend knows the name: a run that is resumed begins in a sandbox of its own.
func (m *machine) ID() string { return "session " + m.Session.ID() }

// Cell implements rlm.Sandbox.
func (m *machine) Cell(ctx context.Context, c sandbox.Cell) (*sandbox.Verdict, error) {
	v, err := m.Session.Cell(ctx, c)
	m.hear(v)
	return v, err
}

// Run implements rlm.Sandbox.
func (m *machine) Run(ctx context.Context, c sandbox.Command) (*sandbox.Verdict, error) {
	v, err := m.Session.Run(ctx, c)
	m.hear(v)
	return v, err
}

// hear keeps what a verdict tells of a state that went back. The session tells it once, and it may be in a cell that nobody asked for.
func (m *machine) hear(v *sandbox.Verdict) {
	if v == nil {
		return
	}
	if from, err := time.Parse(time.RFC3339Nano, v.Metadata[session.MetaStateFrom]); err == nil {
		m.from.Store(&from)
	}
	if previous := v.Metadata[session.MetaPrevious]; previous != "" {
		m.previous.Store(&previous)
	}
}

// PreviousSession implements rlm.Reverting.
func (m *machine) PreviousSession() string {
	if p := m.previous.Load(); p != nil {
		return *p
	}
	return ""
}

// StateFrom implements rlm.Reverting.
func (m *machine) StateFrom() *time.Time { return m.from.Load() }

// Judges says that sessions have a gate of their own, and a mode for it.
func (*machine) Judges() bool { return true }

// Snapshot is refused: those of a session are its owner's.
func (m *machine) Snapshot(context.Context, sandbox.SnapshotOptions) (*sandbox.Snapshot, error) {
	return nil, &v1.Error{Code: v1.CodeNotSupported, Op: "take snapshot", Message: "a run takes no snapshots of a session"}
}

// Close does nothing: the session stays.
func (*machine) Close() error { return nil }
