package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

const (
	// reapers is how many sessions are hibernated or ended at once, because writing memory to disk is work.
	reapers = 2
	// idleRetry is the time between two attempts to hibernate a session.
	idleRetry = time.Minute
	// collectEvery is the time between two collections.
	collectEvery = time.Hour
)

// reap hibernates and ends sessions that are due, saves records and collects garbage.
func (m *Manager) reap() {
	t := time.NewTicker(m.opts.reapEvery)
	defer t.Stop()
	slots := make(chan struct{}, reapers)
	saved, collected := time.Now(), time.Now()
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-t.C:
		}
		for _, s := range m.sessions() {
			act := s.due(time.Now())
			if act == nil {
				continue
			}
			select {
			case slots <- struct{}{}:
				m.work.Go(func() { act(); <-slots })
			default: // the next tick tries again
			}
		}
		if time.Since(saved) >= saveEvery {
			saved = time.Now()
			m.saveDirty()
		}
		if time.Since(collected) >= collectEvery {
			collected = time.Now()
			m.work.Go(func() {
				if _, err := m.GC(m.ctx); err != nil && m.ctx.Err() == nil {
					m.log.WarnContext(m.ctx, "garbage collection failed", "error", err)
				}
			})
		}
	}
}

// saveDirty writes records that have changed, and deferred writes.
func (m *Manager) saveDirty() {
	_ = m.writeDeferred(context.WithoutCancel(m.ctx), Key{}) // the error was logged when the write was deferred
	if err := m.saveNetworkBytes(context.WithoutCancel(m.ctx)); err != nil {
		m.log.WarnContext(m.ctx, "the bytes of connections could not be counted in the store yet", "error", err)
	}
	for _, s := range m.sessions() {
		s.mu.Lock()
		dirty := s.dirty && s.rec.State != v1.StateCreating
		s.mu.Unlock()
		if dirty {
			_ = s.save(context.WithoutCancel(m.ctx)) // save logs the error
		}
	}
}

// due returns the action that is due for the session now, or nil.
func (s *Session) due(now time.Time) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rec.State == v1.StateEnding {
		if now.Before(s.endRetryAt) {
			return nil
		}
		s.endRetryAt = now.Add(backendPollInterval)
		return s.retryEnd
	}
	if s.runOver(now) {
		return s.hibernateExpired
	}
	if s.lifetimeOver(now) {
		return func() {
			_, _ = s.expire(s.m.ctx) // expire logs the error
		}
	}
	if !s.idle(now) || now.Before(s.idleRetryAt) {
		return nil
	}
	if s.rec.Policy.OnIdle == v1.IdleEnd {
		return func() { s.expireIdle("") }
	}
	return s.hibernateIdle
}

// lifetimeOver reports whether the session is past its expiry, and nothing runs in it or what runs has had its
// overtime. Without the overtime, a background command without a timeout would keep the session for ever.
//
// Preconditions: s.mu is held.
func (s *Session) lifetimeOver(now time.Time) bool {
	t, ok := s.rec.expires()
	if !ok || !s.rec.State.Live() || s.rec.State == v1.StateCreating || now.Before(t) || s.hibernates() {
		return false
	}
	return s.quiet() || s.m.ctx.Err() == nil && s.attachment.state != attReserved && !now.Before(t.Add(s.m.opts.overtime))
}

// hibernates reports whether the session hibernates at its expiry.
//
// Preconditions: s.mu is held.
func (s *Session) hibernates() bool {
	return s.rec.Policy.OnExpiry == v1.ExpiryHibernate && s.rec.State == v1.StateReady
}

// runOver reports whether the session is past its expiry, hibernates then, and can do so now. Background commands
// hibernate with it.
//
// Preconditions: s.mu is held.
func (s *Session) runOver(now time.Time) bool {
	return s.hibernates() && !s.rec.Expires.IsZero() && !now.Before(s.rec.Expires) && !now.Before(s.idleRetryAt) &&
		s.calls == 0 && s.m.ctx.Err() == nil && s.attachment.state != attReserved
}

// hibernateExpired hibernates a session at its expiry. From then on only the operator's max_age ends it, which may be
// over, too.
func (s *Session) hibernateExpired() {
	s.mu.Lock()
	quotaOwner, before := s.rec.owner(), s.rec.Expires
	s.mu.Unlock()
	b, err := s.m.bounds(s.m.ctx, quotaOwner)
	if err != nil {
		return // the store is broken, which is logged; the next tick tries again
	}
	last := expiryOf(s.Info().Created, b.maxAge())
	reason := "its time to run ended at " + before.UTC().Format(time.RFC3339)
	if !last.IsZero() && !time.Now().Before(last) {
		may := func() bool { return s.runOver(time.Now()) }
		_, _ = s.finish(s.m.ctx, v1.StateExpired, reason, may) // finish logs the error
		return
	}
	moved := false
	err = s.hibernate(s.m.ctx, reason, func() error {
		if !s.runOver(time.Now()) {
			return errNotIdle
		}
		s.rec.Expires, moved = last, true // saved together with the hibernation
		return nil
	})
	if err == nil || errors.Is(err, errNotIdle) || s.m.ctx.Err() != nil {
		return
	}
	s.m.log.WarnContext(s.m.ctx, "session could not be hibernated at its expiry", "session", s.key.String(), "error", err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idleRetryAt = time.Now().Add(idleRetry)
	if moved && s.rec.Expires.Equal(last) {
		s.rec.Expires = before
	}
}

// expire ends the session if its lifetime is over. It reports whether it did.
func (s *Session) expire(ctx context.Context) (bool, error) {
	s.mu.Lock()
	reason := s.rec.expiryReason()
	s.mu.Unlock()
	return s.finish(ctx, v1.StateExpired, reason, func() bool { return s.lifetimeOver(time.Now()) })
}

// expiryReason returns the reason for which a session past its expiry expires.
func (r *record) expiryReason() string {
	if t, _ := r.expires(); r.hibernationLimited() && !t.Equal(r.Expires) {
		return fmt.Sprintf("it was hibernated for %s", r.Policy.Hibernation)
	}
	return "its lifetime ended at " + r.Expires.UTC().Format(time.RFC3339)
}

// idle reports whether the idle timeout of the session is over and nothing runs in it.
//
// Preconditions: s.mu is held.
func (s *Session) idle(now time.Time) bool {
	t, ok := s.rec.idleAt()
	return ok && !now.Before(t) && s.quiet()
}

// quiet reports whether nothing runs in the session. It returns false if the manager is closing, because it then no
// longer knows what runs.
//
// Preconditions: s.mu is held.
func (s *Session) quiet() bool {
	used := s.calls > 0 || s.connections > 0 || len(s.background) > 0
	if used || s.m.ctx.Err() != nil || s.attachment.state == attReserved {
		return false
	}
	return s.rec.State != v1.StateReady || !s.attachment.mayRun(s.m.started)
}

// expireIdle ends an idle session, unless a call comes first.
func (s *Session) expireIdle(because string) {
	s.mu.Lock()
	reason := fmt.Sprintf("idle for %s", s.rec.Policy.Idle) + because
	s.mu.Unlock()
	// finish logs the error.
	_, _ = s.finish(s.m.ctx, v1.StateExpired, reason, func() bool { return s.idle(time.Now()) })
}

// errNotIdle is the error for a session that was used again before it hibernated.
var errNotIdle = errors.New("the session is in use")

// hibernateIdle hibernates an idle session, or ends it if its backend cannot hibernate.
func (s *Session) hibernateIdle() {
	err := s.hibernate(s.m.ctx, "idle", func() error {
		if !s.idle(time.Now()) {
			return errNotIdle
		}
		return nil
	})
	switch {
	case err == nil || errors.Is(err, errNotIdle) || s.m.ctx.Err() != nil:
	case v1.CodeOf(err) == v1.CodeNotSupported:
		s.expireIdle(", and its backend cannot hibernate it")
	default:
		s.m.log.WarnContext(s.m.ctx, "idle session could not be hibernated", "session", s.key.String(), "error", err)
		s.mu.Lock()
		s.idleRetryAt = time.Now().Add(idleRetry)
		s.mu.Unlock()
	}
}
