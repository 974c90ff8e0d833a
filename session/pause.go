package session

import (
	"context"
	"errors"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// Pause freezes the session in memory. Until Resume, running calls wait and new calls are refused.
func (s *Session) Pause(ctx context.Context) error {
	err := s.pause(ctx)
	s.audit(ctx, Entry{Action: "pause", Error: errorCode(err)})
	return err
}

func (s *Session) pause(ctx context.Context) error {
	if err := s.awaitCreated(ctx); err != nil {
		return err
	}
	if s.Info().State == v1.StatePaused {
		return nil
	}
	if _, err := s.awaitSandbox(ctx); err != nil {
		return err
	}
	if err := s.acquireTurn(ctx); err != nil {
		return err
	}
	defer s.releaseTurn()
	s.mu.Lock()
	sb, err := s.attachment.sandbox, s.refusal(time.Now())
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if sb == nil {
		return &v1.Error{
			Code:    v1.CodeBusy,
			Op:      "pause session",
			Message: "the sandbox of the session is being replaced",
			Retry:   true,
		}
	}
	if err := sb.Pause(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	s.setState(v1.StatePaused, "by hand")
	s.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	if err := s.save(ctx); err != nil { // without the record, the next manager would think that the sandbox hangs
		return errors.Join(err, s.unpause(ctx, "resumed, because the pause could not be written to the store"))
	}
	return nil
}

// Resume resumes a paused session and wakes a hibernated one. It does nothing in other states, but counts as use.
func (s *Session) Resume(ctx context.Context) error {
	err := s.resume(ctx)
	s.audit(ctx, Entry{Action: "resume", Error: errorCode(err)})
	return err
}

func (s *Session) resume(ctx context.Context) error {
	if err := s.awaitCreated(ctx); err != nil {
		return err
	}
	if err := s.acquireTurn(ctx); err != nil {
		return err
	}
	err := s.unpause(context.WithoutCancel(ctx), "resumed")
	s.releaseTurn()
	if err != nil {
		return err
	}
	_, done, err := s.enter(ctx, true)
	if err != nil {
		return err
	}
	done()
	return nil
}

// unpause resumes a paused session.
//
// Preconditions: the turn is held.
func (s *Session) unpause(ctx context.Context, reason string) error {
	s.mu.Lock()
	state, id := s.rec.State, s.rec.Sandbox
	s.mu.Unlock()
	if state != v1.StatePaused {
		return nil
	}
	b, err := s.backend()
	if err != nil {
		return err
	}
	p, ok := b.(backend.Pauser)
	if !ok {
		return backend.NotSupported(b.Name(), "resume", "")
	}
	if err := p.Resume(ctx, id); err != nil {
		return err
	}
	s.mu.Lock()
	s.setState(v1.StateReady, reason)
	s.mu.Unlock()
	_ = s.save(ctx) // save logs the error, and the reaper retries; the session already runs
	return nil
}
