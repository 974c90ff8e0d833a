package session

import (
	"context"
	"fmt"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// Hibernate writes the session to disk and frees its memory. The next call wakes it. Background commands hibernate
// with it. While a cell, a foreground command or a transfer is in progress, or a connection to a port is open,
// Hibernate returns the error busy.
func (s *Session) Hibernate(ctx context.Context) error {
	err := s.hibernate(ctx, "by hand", func() error {
		if s.calls > 0 {
			return &v1.Error{
				Code:    v1.CodeBusy,
				Op:      "hibernate session",
				Message: "a cell, a command or a transfer is in progress",
				Remedy:  "wait for it, or cancel it",
				Retry:   true,
			}
		}
		if s.connections > 0 {
			return &v1.Error{
				Code:    v1.CodeBusy,
				Op:      "hibernate session",
				Message: "connections to ports inside are open",
				Remedy:  "close them",
				Retry:   true,
			}
		}
		return nil
	})
	s.audit(ctx, Entry{Action: "hibernate", Error: errorCode(err)})
	return err
}

// hibernate hibernates the session, unless object, which is called with s.mu held, returns an error.
func (s *Session) hibernate(ctx context.Context, reason string, object func() error) error {
	if err := s.awaitCreated(ctx); err != nil {
		return err
	}
	if err := s.acquireTurn(ctx); err != nil {
		return err
	}
	defer s.releaseTurn()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.makeWait())
	defer cancel()
	sb, err := s.reserveToHibernate(ctx, object)
	if err != nil || sb == nil {
		return err
	}
	s.mu.Lock()
	labels := s.m.imageLabels(&s.rec, kindHibernation)
	s.mu.Unlock()
	view := viewSandbox(ctx, sb)
	failpoint("hibernate.begun")
	// Followers see the end of the sandbox before this call returns. If the sandbox is lost at this very moment, they
	// get the error session_moved, retry, and then get the right error.
	s.setMovedFrom(sb.ID())
	snap, err := sb.Snapshot(ctx, sandbox.SnapshotOptions{Labels: labels, Stop: true})
	failpoint("hibernate.stopped")
	if snap == nil {
		s.setMovedFrom("")
		s.release()
		return err
	}
	if err != nil { // the image is complete, but the sandbox was not removed completely
		s.m.log.WarnContext(ctx, "hibernated sandbox could not be removed completely", "sandbox", sb.ID(), "error", err)
	}
	s.mu.Lock()
	s.attachment.detach()
	s.rec.enterHibernation(snap, time.Now().UTC())
	s.rec.View = view
	s.events.ring = append([]Event(nil), s.events.ring[max(0, len(s.events.ring)-8):]...)
	s.setState(v1.StateHibernated, reason)
	s.mu.Unlock()
	if err != nil {
		sb.Detach()
		_ = sb.Backend().Stop(ctx, sb.ID()) // the next collection retries
	}
	err = s.save(ctx)
	failpoint("hibernate.saved")
	return err
}

// setMovedFrom records the sandbox that the session leaves because it is hibernated or restored; "": it stays there.
func (s *Session) setMovedFrom(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attachment.movedFrom = id
}

// canHibernate reports whether the sandboxes of a backend can be written to disk with their memory.
func canHibernate(ctx context.Context, b sandbox.Backend) bool {
	return b.Capabilities(ctx).Snapshots == sandbox.SnapshotsMemory
}

// idleOn returns a function that sets the idle action of a record to one that the backend supports. On a backend that
// cannot hibernate, an idle session ends; if the caller requested hibernation, that is an error. idleOn queries the
// backend.
//
// Preconditions: s.mu is not held.
func (r *record) idleOn(ctx context.Context, b sandbox.Backend, remedy string) (func(*record), error) {
	wanted := r.Policy.OnIdle
	if r.IdleFallback {
		wanted = v1.IdleHibernate
	}
	fallback := wanted == v1.IdleHibernate && !canHibernate(ctx, b)
	if fallback && r.IdleRequested {
		return nil, backend.NotSupported(b.Name(), "hibernate: its snapshots contain no memory", remedy)
	}
	if fallback {
		wanted = v1.IdleEnd
	}
	return func(r *record) { r.Policy.OnIdle, r.IdleFallback = wanted, fallback }, nil
}

// reserveToHibernate reserves the sandbox and returns it, or nil if the session is hibernated already.
//
// Preconditions: the turn is held.
func (s *Session) reserveToHibernate(ctx context.Context, object func() error) (*sandbox.Sandbox, error) {
	b, err := s.backend()
	if err != nil {
		return nil, err
	}
	if !canHibernate(ctx, b) {
		return nil, backend.NotSupported(b.Name(), "hibernate: its snapshots contain no memory",
			"use a backend whose snapshots contain memory, or set on_idle to end")
	}
	s.mu.Lock()
	state, id := s.rec.State, s.rec.Sandbox
	if state == v1.StateHibernated {
		s.mu.Unlock()
		return nil, nil
	}
	if now := time.Now(); state != v1.StatePaused && !s.runOver(now) {
		err = s.refusal(now)
	}
	if err == nil {
		err = object()
	}
	if err == nil && state != v1.StateReady && state != v1.StatePaused {
		err = &v1.Error{
			Code:    v1.CodeBusy,
			Op:      "hibernate session",
			Message: fmt.Sprintf("the session is %s", state),
			Retry:   true,
		}
	}
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	s.attachment.reserve()
	sb := s.attachment.sandbox
	s.mu.Unlock()
	if err := s.unpause(ctx, "resumed to be hibernated"); err != nil {
		s.release()
		return nil, err
	}
	if sb != nil {
		return sb, nil
	}
	if err := s.attach(ctx, id); err != nil {
		s.release()
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rec.State == v1.StateHibernated {
		s.attachment.release()
		return nil, nil
	}
	if sb = s.attachment.sandbox; sb == nil {
		return nil, &v1.Error{
			Code:    v1.CodeSessionLost,
			Op:      "hibernate session",
			Message: "the sandbox of the session is gone",
			Retry:   true,
		}
	}
	s.attachment.reserve() // again: attaching ended the first reservation
	return sb, nil
}

// release ends the reservation of the sandbox.
func (s *Session) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attachment.release()
}

// wake restores a hibernated session. If that fails, the session stays hibernated, because the cause may be temporary,
// such as a host file that has changed. If the image is missing or corrupt, the session is lost.
//
// Preconditions: the turn is held.
func (s *Session) wake(ctx context.Context) error {
	b, err := s.backend()
	if err != nil {
		return err
	}
	s.mu.Lock()
	image, labels := s.rec.Hibernation, s.m.labels(&s.rec)
	s.mu.Unlock()
	if image == nil {
		return &v1.Error{Code: v1.CodeInternal, Op: "wake session", Message: "the hibernation image is not known"}
	}
	ctx, cancel := context.WithTimeout(ctx, s.makeWait())
	defer cancel()
	if err := s.reserveToWake(ctx); err != nil {
		return err
	}
	sb, err := s.restoreSandbox(ctx, b, image, sandbox.RestoreOptions{Labels: labels})
	if code := v1.CodeOf(err); code == v1.CodeNotFound || code == v1.CodeSnapshotCorrupt {
		s.mu.Lock()
		s.rec.leaveHibernation(time.Now().UTC())
		s.markLost(err)
		s.mu.Unlock()
		s.m.begin(func() { s.restoreLost(b, "") })
		return nil
	}
	if err != nil {
		s.m.ledger.setState(s.id, v1.StateHibernated)
		return err
	}
	failpoint("wake.made")
	s.adopt(sb, true, func() {
		if s.setState(v1.StateReady, "woken") {
			s.rec.leaveHibernation(time.Now().UTC())
		}
	})
	// The call need not wait for the store: until it is written, the labels of the sandbox identify it.
	s.m.begin(func() {
		ctx := context.WithoutCancel(s.m.ctx)
		if s.save(ctx) == nil {
			failpoint("wake.saved")
			s.m.dropImage(ctx, image)
		}
	})
	return nil
}
