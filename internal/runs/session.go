package runs

import (
	"context"
	"sync/atomic"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// machine implements rlm.Machine for a run that works in a session.
type machine struct {
	*session.Session
	from     atomic.Pointer[time.Time] // time of the snapshot that the session was restored to; nil: not restored
	previous atomic.Pointer[string]    // how the previous session of this name ended; nil: there was none
}

// inSession returns a machine for a session. The session does not hibernate until release is called.
func inSession(ctx context.Context, s *session.Session) (m *machine, release func(), err error) {
	release, err = s.KeepAwake(ctx)
	if err != nil {
		return nil, nil, err
	}
	return &machine{Session: s}, release, nil
}

// ID implements rlm.Machine. No backend knows this id, so a resumed run starts in a sandbox of its own.
func (m *machine) ID() string { return "session " + m.Session.ID() }

// Spec returns the spec of the session.
func (m *machine) Spec() sandbox.Spec { return m.Info().Spec }

// Cell implements rlm.Sandbox.
func (m *machine) Cell(ctx context.Context, c sandbox.Cell) (*sandbox.Verdict, error) {
	v, err := m.Session.Cell(ctx, c)
	m.noteRestore(v)
	return v, err
}

// Run implements rlm.Sandbox.
func (m *machine) Run(ctx context.Context, c sandbox.Command) (*sandbox.Verdict, error) {
	v, err := m.Session.Run(ctx, c)
	m.noteRestore(v)
	return v, err
}

// noteRestore stores what the metadata of a verdict says about a restored or new session. The session reports it once,
// possibly in the verdict of an internal cell.
func (m *machine) noteRestore(v *sandbox.Verdict) {
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

// Judges reports that the machine judges its code itself: a session has its own gate and mode.
func (*machine) Judges() bool { return true }

// Snapshot returns an error, because the snapshots of a session belong to its owner.
func (m *machine) Snapshot(context.Context, sandbox.SnapshotOptions) (*sandbox.Snapshot, error) {
	return nil, &v1.Error{
		Code:    v1.CodeNotSupported,
		Op:      "take snapshot",
		Message: "a run cannot take snapshots of its session",
	}
}

// Close does nothing. The session outlives the run.
func (*machine) Close() error { return nil }
