package session

import (
	"context"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

const (
	// heldWait is how long a sandbox may be busy with an earlier connection. A broken connection takes some time to
	// close, and a new sandbox keeps the connection of its creator open for a moment.
	heldWait = 5 * time.Second
	// heldPause is the time between two attempts.
	heldPause = 20 * time.Millisecond
)

// attachSandbox attaches a sandbox. It retries while the sandbox is busy, because the previous connection may not be
// closed yet.
func (s *Session) attachSandbox(ctx context.Context, b sandbox.Backend, id string) (*sandbox.Sandbox, error) {
	ctx, err := s.withNetwork(ctx)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(heldWait); ; {
		sb, err := sandbox.AttachWith(ctx, b, id, sandbox.AttachOptions{Network: s.networkState()})
		if v1.CodeOf(err) != v1.CodeBusy || time.Now().After(deadline) {
			return sb, err
		}
		select {
		case <-time.After(heldPause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// restoreSandbox makes a sandbox of the session from an image. It has the network policy of the session, whichever the
// image has.
func (s *Session) restoreSandbox(
	ctx context.Context, b sandbox.Backend, image *sandbox.Snapshot, o sandbox.RestoreOptions,
) (*sandbox.Sandbox, error) {
	ctx, err := s.withNetwork(ctx)
	if err != nil {
		return nil, err
	}
	o.Network = s.networkState()
	return s.withVolumes(ctx, image.Spec.Volumes, func() (*sandbox.Sandbox, error) {
		return sandbox.Restore(ctx, b, image, o)
	})
}

// awaitSandbox returns the sandbox. If necessary, it attaches, wakes or waits for the sandbox first.
func (s *Session) awaitSandbox(ctx context.Context) (*sandbox.Sandbox, error) {
	for {
		s.mu.Lock()
		if err := s.refusal(time.Now()); err != nil {
			s.mu.Unlock()
			return nil, err
		}
		sb, changing, changed := s.attachment.usable(), s.attachment.changing(), s.attachment.changed
		s.mu.Unlock()
		if sb != nil {
			if err := sb.Frozen(); err != nil {
				return nil, err
			}
			return sb, nil
		}
		if !changing {
			if err := s.ensureAttached(ctx); err != nil {
				return nil, err
			}
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, cancelled("wait for session", ctx.Err())
		case <-s.m.ctx.Done():
			return nil, errClosing
		}
	}
}

// frozen returns the error for a call that begins while the sandbox is paused from outside, for example by docker
// pause. It returns nil if the sandbox is not paused.
func (s *Session) frozen() error {
	s.mu.Lock()
	sb := s.attachment.usable()
	s.mu.Unlock()
	if sb == nil {
		return nil
	}
	return sb.Frozen()
}

// alive reports whether the sandbox has not ended, as far as this manager knows.
func alive(sb *sandbox.Sandbox) bool {
	select {
	case <-sb.Gone():
		return false
	default:
		return true
	}
}

// ensureAttached attaches or wakes the sandbox of a session that has none attached.
func (s *Session) ensureAttached(ctx context.Context) error {
	if err := s.acquireTurn(ctx); err != nil {
		return err
	}
	defer s.releaseTurn()
	s.mu.Lock()
	sb, state, id := s.attachment.sandbox, s.rec.State, s.rec.Sandbox
	s.mu.Unlock()
	ctx = context.WithoutCancel(ctx) // other calls wait for the sandbox, too
	switch {
	case sb != nil || !state.Live() || state == v1.StatePaused || state == v1.StateLost:
		return nil // another call was faster, or the state has changed
	case state == v1.StateHibernated:
		return s.wake(ctx)
	case id != "":
		return s.attach(ctx, id)
	}
	return &v1.Error{Code: v1.CodeInternal, Op: "use session", Message: "the session has no sandbox"}
}

// attach attaches the sandbox of the record. If the sandbox is gone, attach begins to restore the session.
//
// Preconditions: the turn is held.
func (s *Session) attach(ctx context.Context, id string) error {
	b, err := s.backend()
	if err != nil {
		return err
	}
	ctx, cancel := s.withMakeWait(ctx)
	defer cancel()
	sb, err := s.attachSandbox(ctx, b, id)
	if err == nil {
		s.adopt(sb, true, nil)
		return nil
	}
	if s.m.ctx.Err() != nil {
		return errClosing
	}
	if !isGone(err) {
		return err
	}
	if hibernated, err := s.findHibernation(ctx, b); hibernated || err != nil {
		return err
	}
	s.mu.Lock()
	s.markLost(err)
	s.mu.Unlock()
	s.m.begin(func() { s.restoreLost(b, id) })
	return nil
}

// adopt makes sb the sandbox of the session, and calls change while it holds s.mu. If used is set, operations may
// already run in the sandbox. adopt lists them before a call can start one, so that the operation of a call is not
// mistaken for a background command.
func (s *Session) adopt(sb *sandbox.Sandbox, used bool, change func()) {
	var running []sandbox.Operation
	var err error
	if used {
		running, err = s.runningOperations(sb)
	}
	s.mu.Lock()
	sb.OnHostCall(s.handler)
	if s.rec.Sandbox != sb.ID() {
		s.rec.Incidents = nil // they belong to the previous sandbox
	}
	s.attachment.adopt(sb, err == nil) // without an answer, anything may run
	s.rec.Sandbox, s.dirty = sb.ID(), true
	if change != nil {
		change()
	}
	s.trackFound(sb, running)
	s.mu.Unlock()
	sb.OnNetwork(s.observeNetwork)
	sb.OnIncident(func(i sandbox.Incident) { s.onIncident(sb, i) })
	s.m.begin(func() { s.watch(sb) })
}

// illegalTransition logs a transition of an attachment that is not in the table, which is a bug. In tests it panics.
func (m *Manager) illegalTransition(s *Session, from, to attachmentState) {
	if panicOnIllegalTransition {
		panic("illegal transition of the attachment of " + s.key.String() + ": " + string(from) + " to " + string(to))
	}
	m.log.ErrorContext(m.ctx, "illegal transition of an attachment",
		"session", s.key.String(), "from", string(from), "to", string(to))
}

// panicOnIllegalTransition is set by tests.
var panicOnIllegalTransition bool
