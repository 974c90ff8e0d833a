package session

import (
	"context"
	"errors"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

const (
	// pingers is how many sandboxes are pinged at once.
	pingers = 4
	// busyMisses is how many pings in a row a sandbox in use may miss before its connection is checked. Checking ends
	// the calls in progress, and running code may keep the sandbox from answering for a while.
	busyMisses = 3
)

// watch waits for the unexpected end of a sandbox, and then has the session restored.
func (s *Session) watch(sb *sandbox.Sandbox) {
	select {
	case <-sb.Gone():
	case <-s.m.ctx.Done():
		return
	}
	if s.acquireTurn(s.m.ctx) != nil {
		return
	}
	defer s.releaseTurn()
	s.mu.Lock()
	current := s.attachment.has(sb) && s.rec.State.Live()
	s.mu.Unlock()
	if !current {
		return // the session no longer uses this sandbox
	}
	cause := s.m.ping(sb) // its error is the cause of the end
	if !isGone(cause) {
		s.markUnreachable(sb, cause)
		return
	}
	s.handleLoss(sb, cause)
}

// isGone reports whether an error means that a sandbox no longer exists. After other errors, such as those of a backend
// that does not answer, the sandbox may still exist.
func isGone(err error) bool {
	switch v1.CodeOf(err) {
	case v1.CodeNotFound, v1.CodeSandboxLost, v1.CodeGuestLost:
		return true
	}
	return false
}

// markUnreachable closes the connection to a sandbox that may still run. The next call or health check attaches it
// again.
//
// Preconditions: the turn is held.
func (s *Session) markUnreachable(sb *sandbox.Sandbox, cause error) {
	if s.m.ctx.Err() != nil {
		return
	}
	sb.Detach()
	s.m.log.WarnContext(s.m.ctx, "sandbox is unreachable",
		"session", s.key.String(), "sandbox", sb.ID(), "error", cause)
	s.mu.Lock()
	defer s.mu.Unlock()
	if cause != nil { // nil: the sandbox answers again
		s.recordIncident(incidentOf(cause))
	}
	s.attachment.markUnreachable()
}

// checkConnection checks a sandbox that does not answer, or did not answer before. If only the connection broke, it
// opens a new one. Otherwise the sandbox is unreachable or lost.
func (s *Session) checkConnection(sb *sandbox.Sandbox) {
	if s.acquireTurn(s.m.ctx) != nil {
		return
	}
	defer s.releaseTurn()
	s.mu.Lock()
	current := s.attachment.has(sb) && s.rec.State.Live() && s.rec.State != v1.StatePaused
	s.mu.Unlock()
	if !current {
		return
	}
	err := s.m.ping(sb)
	if err == nil {
		s.queryOperations(sb)
	}
	if sb.Frozen() != nil { // paused from outside: the sandbox and its calls continue when it is resumed
		return
	}
	if err == nil || s.m.ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	s.attachment.reattach()
	s.mu.Unlock()
	sb.Detach()
	s.m.log.WarnContext(s.m.ctx, "sandbox does not answer, attaching again",
		"session", s.key.String(), "sandbox", sb.ID(), "error", err)
	again, hangs, aerr := s.reconnect(sb)
	switch {
	case aerr == nil:
		s.adopt(again, true, nil)
	case isGone(aerr) || hangs:
		s.handleLoss(sb, err)
	default:
		s.markUnreachable(sb, aerr)
	}
}

// reconnect opens a new connection to a sandbox that does not answer; hangs reports that the sandbox itself hangs. A
// backend that stalls looks the same, although its sandboxes still run, so the backend is probed before and after.
func (s *Session) reconnect(sb *sandbox.Sandbox) (again *sandbox.Sandbox, hangs bool, err error) {
	m := s.m
	if err := m.probeBackend(sb.Backend()); err != nil {
		return nil, false, err
	}
	ctx, cancel := context.WithTimeout(m.ctx, m.opts.reconnectWait)
	defer cancel()
	again, err = s.attachSandbox(ctx, sb.Backend(), sb.ID())
	if !errors.Is(err, context.DeadlineExceeded) {
		return again, false, err
	}
	if away := m.probeBackend(sb.Backend()); away != nil {
		return nil, false, away
	}
	return nil, true, err
}

// ping pings a sandbox.
func (m *Manager) ping(sb *sandbox.Sandbox) error {
	ctx, cancel := context.WithTimeout(m.ctx, m.opts.pingWait)
	defer cancel()
	return sb.Ping(ctx)
}

// checkHealth pings the sandboxes of ready sessions, and attaches those that were unreachable.
func (m *Manager) checkHealth(every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	slots := make(chan struct{}, pingers)
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-t.C:
		}
		for _, s := range m.sessions() {
			s.mu.Lock()
			skip := s.rec.State != v1.StateReady || s.attachment.state == attReserved
			s.mu.Unlock()
			if skip {
				continue
			}
			select {
			case slots <- struct{}{}:
			case <-m.ctx.Done():
				return
			}
			m.work.Go(func() {
				defer func() { <-slots }()
				s.checkHealth()
			})
		}
	}
}

// checkHealth pings the sandbox of the session, or attaches it.
func (s *Session) checkHealth() {
	s.mu.Lock()
	sb := s.attachment.sandbox
	s.mu.Unlock()
	if sb == nil {
		_ = s.ensureAttached(s.m.ctx) // a call gets the error
		return
	}
	if sb.Frozen() != nil {
		return // paused from outside: it answers when it is resumed
	}
	err := s.m.ping(sb)
	s.mu.Lock()
	if !s.attachment.has(sb) { // the sandbox has been replaced
		s.mu.Unlock()
		return
	}
	missed, unverified := s.attachment.pinged(err), s.attachment.isUnverified()
	tolerated := (s.calls+len(s.background) > 0 || unverified) && missed < busyMisses
	s.mu.Unlock()
	check := err != nil && !tolerated || err == nil && unverified
	if check && s.m.ctx.Err() == nil {
		s.checkConnection(sb)
	}
}
