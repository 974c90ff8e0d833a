package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
)

const (
	// reapers is how many sessions are put to sleep or ended at once: writing memory to disk is work.
	reapers = 2
	// idleRetry is how long a session is left alone after it could not be put to sleep.
	idleRetry = time.Minute
	// collectEvery is how often what nothing needs is removed.
	collectEvery = time.Hour
)

// reap acts on sessions whose time is up.
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
			default: // the next look
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
					m.log.WarnContext(m.ctx, "collection failed", "error", err)
				}
			})
		}
	}
}

// saveDirty writes when sessions were last used, and what could not be written before.
func (m *Manager) saveDirty() {
	_ = m.settle(context.WithoutCancel(m.ctx), Key{}) // told when it came to be owed
	for _, s := range m.sessions() {
		s.mu.Lock()
		dirty := s.dirty && s.rec.State != Creating
		s.mu.Unlock()
		if dirty {
			_ = s.save(context.WithoutCancel(m.ctx)) // told there
		}
	}
}

// due says what is to be done about a session, or nil.
func (s *Session) due(now time.Time) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over(now) {
		return func() {
			_, _ = s.finish(s.m.ctx, Expired, s.overReason(), func() bool { return s.over(time.Now()) }) // told there
		}
	}
	if !s.idle(now) || now.Before(s.idleRetryAt) {
		return nil
	}
	if s.rec.Policy.OnIdle == IdleEnd {
		return func() { s.expireIdle("") }
	}
	return s.sleep
}

// over says whether the session's lifetime has passed and nothing runs in it.
//
// Preconditions: mu is held.
func (s *Session) over(now time.Time) bool {
	t, ok := s.rec.expires()
	return ok && s.rec.State.Live() && s.rec.State != Creating && !now.Before(t) && s.quiet()
}

func (s *Session) overReason() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rec.State == Hibernated {
		return fmt.Sprintf("it was hibernated for %s", s.rec.Policy.Hibernation)
	}
	return fmt.Sprintf("its lifetime of %s is over", s.rec.Policy.TTL+s.rec.ExtendedBy)
}

// idle says whether nobody has used the session for as long as its policy allows.
//
// Preconditions: mu is held.
func (s *Session) idle(now time.Time) bool {
	t, ok := s.rec.idleAt()
	return ok && !now.Before(t) && s.quiet()
}

// quiet says that nothing runs in the session. A manager that is being closed no longer hears of what runs.
//
// Preconditions: mu is held.
func (s *Session) quiet() bool {
	if s.calls > 0 || len(s.background) > 0 || s.m.ctx.Err() != nil || s.attachment.state == attReserved {
		return false
	}
	return s.rec.State != Ready || !s.attachment.mayRun(s.m.started)
}

// expireIdle ends a session that nobody uses. A call that came first wins.
func (s *Session) expireIdle(because string) {
	s.mu.Lock()
	reason := fmt.Sprintf("nobody used it for %s", s.rec.Policy.Idle) + because
	s.mu.Unlock()
	_, _ = s.finish(s.m.ctx, Expired, reason, func() bool { return s.idle(time.Now()) }) // told there
}

// errNotIdle is how a call that came first keeps a session awake.
var errNotIdle = errors.New("somebody uses it")

// sleep puts an idle session to sleep, or ends it where that cannot be done.
func (s *Session) sleep() {
	err := s.hibernate(s.m.ctx, "nobody used it", func() error {
		if !s.idle(time.Now()) {
			return errNotIdle
		}
		return nil
	})
	switch {
	case err == nil || errors.Is(err, errNotIdle) || s.m.ctx.Err() != nil:
	case sandbox.CodeOf(err) == sandbox.CodeNotSupported:
		s.expireIdle(", and its backend cannot hibernate it")
	default:
		s.m.log.WarnContext(s.m.ctx, "idle session could not be hibernated", "session", s.key.String(), "error", err)
		s.mu.Lock()
		s.idleRetryAt = time.Now().Add(idleRetry)
		s.mu.Unlock()
	}
}
