package session

import (
	"context"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// Session is a live session. It stays usable while its sandbox is hibernated, lost and restored, or forked.
//
// Three things synchronize it. mu guards its fields and is never held during a slow call. The turn is held while the
// sandbox is changed: created, attached, hibernated, restored or ended. calls counts the calls that use the sandbox;
// while it is not zero, only an end, a restore of a lost session or a loss takes the sandbox away.
type Session struct {
	m   *Manager
	id  string
	key Key

	created  chan struct{} // closed when the session is created, or could not be; see createErr
	freed    chan struct{} // closed when it no longer holds its key
	disposed chan struct{} // closed when its sandbox and images are removed, or their removal failed
	turn     chan struct{} // holds one value while the turn is held

	saveMu   sync.Mutex // held while the record is written; taken before mu
	namingMu sync.Mutex // held while a snapshot is taken and named; taken before the turn
	countMu  sync.Mutex // held while its snapshots are counted; taken before mu

	// mu guards the fields below.
	mu            sync.Mutex
	createErr     error // the error of its creation
	rec           record
	dirty         bool // rec has changes that the store does not have yet
	attachment    attachment
	calls         int                         // cells, commands and transfers in progress
	connections   int                         // open connections to ports inside
	background    map[string]*sandbox.Sandbox // background commands by id, and where they run: a fork has the same ids
	idleRetryAt   time.Time                   // no idle action before this, because the last one failed
	endRetryAt    time.Time                   // while it is ending: when its backend is probed again
	snapshotCount int
	handler       sandbox.HostFunc
	queues        map[string]*queue // by context

	network networkLog
	events  events
}

func (m *Manager) newSession(r record) *Session {
	s := &Session{
		m:        m,
		id:       r.ID,
		key:      r.Key,
		rec:      r,
		created:  make(chan struct{}),
		freed:    make(chan struct{}),
		disposed: make(chan struct{}),
		turn:     make(chan struct{}, 1),
	}
	s.attachment = newAttachment(func(from, to attachmentState) { m.illegalTransition(s, from, to) })
	return s
}

// ID returns the id of the session. Unlike its key, the id is never used again.
func (s *Session) ID() string { return s.id }

// Key returns the key of the session.
func (s *Session) Key() Key { return s.key }

// Info describes the session. It does not count as use.
func (s *Session) Info() Info {
	i, sb := s.info()
	if sb == nil {
		return i
	}
	if b, ok := sb.Backend().(backend.Saver); ok {
		if done, total := b.Saving(sb.ID()); total > 0 {
			i.Saving = &v1.Saving{Done: done, Total: total}
		}
	}
	return i
}

// info returns what is known of the session without asking a backend, and its attached sandbox.
func (s *Session) info() (Info, *sandbox.Sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.rec.info()
	i.Running = s.calls + s.connections + len(s.background)
	i.Snapshots = s.snapshotCount
	if sb := s.attachment.sandbox; sb != nil {
		i.Cost = sb.Cost()
		if !i.Spec.Network.IsNone() {
			i.NetworkRules = sb.NetworkRules()
		}
	}
	i.Gate = string(gate.EffectiveMode(s.m.opts.Gate, gate.Mode(i.Gate)))
	if i.State == v1.StateReady && i.Running > 0 {
		i.State, i.Reason = v1.StateExecuting, "a command runs in the background"
		if s.connections > 0 {
			i.Reason = "a connection to a port is open"
		}
		if s.calls > 0 {
			i.Reason = "a cell, a command or a transfer is in progress"
		}
	}
	return i, s.attachment.sandbox
}

// info returns the fields of Info that are in the record.
func (r *record) info() Info {
	i := Info{
		ID:        r.ID,
		Key:       r.Key,
		State:     r.State,
		Reason:    r.Reason,
		Backend:   r.Backend,
		Sandbox:   r.Sandbox,
		Spec:      r.Spec,
		Policy:    r.Policy,
		Labels:    r.Labels,
		Gate:      r.Gate,
		Role:      r.Role,
		APIKey:    r.APIKey,
		Created:   r.Created,
		Used:      r.Used,
		Restored:  r.Restored,
		StateFrom: r.StateFrom,
		Previous:  r.Previous,
		Output:    r.Output,
		Incidents: r.Incidents,
	}
	if !r.State.Live() {
		ended := r.Ended
		i.Ended = &ended
		return i
	}
	if t, ok := r.expires(); ok {
		i.Expires = &t
	}
	if t, ok := r.idleAt(); ok {
		i.IdleAt = &t
	}
	return i
}

// setState changes the state and wakes waiting calls. It returns false if the table does not allow the transition.
//
// Preconditions: s.mu is held.
func (s *Session) setState(next State, reason string) bool {
	if s.rec.State != next && !mayBecome(s.rec.State, next) {
		return false
	}
	if s.rec.State != next {
		s.m.counts.addState(next)
	}
	s.rec.State, s.rec.Reason = next, reason
	s.m.ledger.setState(s.id, next)
	if next != v1.StateHibernated {
		s.rec.View = nil
	}
	s.dirty = true
	s.emit(Event{Kind: "state", State: next, Reason: reason}, true)
	s.attachment.wake()
	return true
}

// refusal returns the error for a call to a session that cannot be used now, or nil.
//
// Preconditions: s.mu is held.
func (s *Session) refusal(now time.Time) error {
	fail := func(code v1.Code, text, remedy string) error {
		return &v1.Error{
			Code:    code,
			Op:      "use session",
			Message: "session \"" + s.key.Name + "\" " + text,
			Remedy:  remedy,
		}
	}
	switch s.rec.State {
	case v1.StateEnded:
		return fail(v1.CodeSessionEnded, "has ended: "+s.rec.Reason, "open it again")
	case v1.StateExpired:
		return expired(s.key, s.rec.Reason)
	case v1.StateEnding:
		return fail(v1.CodeSessionEnded, "is ending: "+s.rec.Reason,
			"open it again when it has ended, or choose another name")
	case v1.StatePaused:
		return fail(v1.CodeSessionPaused, "is paused", "resume it")
	case v1.StateLost:
		if !s.attachment.isRestoring() {
			return fail(v1.CodeSessionLost, "is lost: "+s.rec.Reason,
				"end it and open it again, or restore one of its snapshots")
		}
		if err := s.attachment.stalledBy(); err != nil {
			return err
		}
	case v1.StateCreating, v1.StateReady, v1.StateExecuting, v1.StateHibernated: // usable
	}
	// The session is past its expiry, and only running operations keep it alive.
	if t, ok := s.rec.expires(); ok && !now.Before(t) {
		return expired(s.key, s.rec.expiryReason()+"; it ends when its running operations have ended")
	}
	return nil
}

// checkLive returns an error if the session has ended.
func (s *Session) checkLive() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rec.State.Live() {
		return nil
	}
	return s.refusal(s.rec.Ended)
}

// acquireTurn waits for the turn to change the sandbox.
func (s *Session) acquireTurn(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	default:
	}
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-s.freed:
		return s.checkLive() // dispose keeps the turn
	case <-ctx.Done():
		return cancelled("wait for session", ctx.Err())
	case <-s.m.ctx.Done():
		return errClosing
	}
}

// releaseTurn releases the turn, so that another goroutine can change the sandbox.
func (s *Session) releaseTurn() { <-s.turn }

// explain turns an error of the sandbox into one of the session. If the guest did not answer, it has the connection
// checked in the background.
func (s *Session) explain(sb *sandbox.Sandbox, err error) error {
	if err == nil {
		return nil
	}
	code := v1.CodeOf(err)
	if code != v1.CodeSandboxLost && code != v1.CodeGuestLost {
		return err
	}
	if s.m.ctx.Err() != nil {
		return errClosing
	}
	s.mu.Lock()
	refused := s.rec.State == v1.StateEnded || s.rec.State == v1.StateExpired
	switch {
	case refused:
		err = s.refusal(time.Now())
	case s.attachment.movedFrom == sb.ID():
		err = &v1.Error{
			Code:    v1.CodeSessionMoved,
			Op:      "use session",
			Message: "session \"" + s.key.Name + "\" was hibernated or restored during the call",
			Remedy:  "repeat the call",
			Retry:   true,
		}
	}
	check := !refused && code == v1.CodeGuestLost && s.attachment.has(sb)
	if check { // the operation of the call may still run
		s.attachment.markUnverified()
	}
	s.mu.Unlock()
	if check {
		s.m.begin(func() { s.checkConnection(sb) })
	}
	return err
}

func errorCode(err error) string { return string(v1.CodeOf(err)) }
