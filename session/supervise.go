package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/internal/webhook"
	"github.com/recluse-dev/recluse/sandbox"
)

// backoff is the pause before each attempt to restore a lost session. The first comes at once: most losses are single ones.
var backoff = [RestoreAttempts]time.Duration{0, time.Second, 5 * time.Second}

const (
	// awayPause is the time between two looks for a backend that is away.
	awayPause = time.Second
	// pingers is how many sandboxes are asked at once whether they are well.
	pingers = 4
	// busyMisses is how many pings in a row a sandbox may miss in which something runs. Looking closer ends the calls under way, and what runs
	// may keep it from answering for a while.
	busyMisses = 3
)

// watch notices the end of a sandbox that nobody ended.
func (s *Session) watch(sb *sandbox.Sandbox) {
	select {
	case <-sb.Gone():
	case <-s.m.ctx.Done():
		return
	}
	if s.take(s.m.ctx) != nil {
		return
	}
	defer s.give()
	s.mu.Lock()
	mine := s.attachment.has(sb) && s.rec.State.Live()
	s.mu.Unlock()
	if !mine {
		return // we have let go of it ourselves
	}
	cause := s.m.ping(sb) // which tells why
	if !gone(cause) {
		s.letGo(sb, cause)
		return
	}
	s.replace(sb, cause)
}

// gone says whether an error means that a sandbox is no more. Others, such as those of an engine that is away, say nothing about it.
func gone(err error) bool {
	switch sandbox.CodeOf(err) {
	case sandbox.CodeNotFound, sandbox.CodeSandboxLost, sandbox.CodeGuestLost:
		return true
	}
	return false
}

// letGo gives up the way to a sandbox that may live on. The next call, or the next look at its health, finds it again.
//
// Preconditions: the turn is taken.
func (s *Session) letGo(sb *sandbox.Sandbox, cause error) {
	if s.m.ctx.Err() != nil {
		return
	}
	sb.Detach()
	s.m.log.WarnContext(s.m.ctx, "sandbox cannot be reached", "session", s.key.String(), "sandbox", sb.ID(), "error", cause)
	s.mu.Lock()
	defer s.mu.Unlock()
	if cause != nil { // nil: it answers again already
		s.befall(incidentOf(cause))
	}
	s.attachment.markUnreachable()
}

// suspect looks at a sandbox that does not answer, or did not. If only the connection broke there is a new one; else it is lost.
func (s *Session) suspect(sb *sandbox.Sandbox) {
	if s.take(s.m.ctx) != nil {
		return
	}
	defer s.give()
	s.mu.Lock()
	mine := s.attachment.has(sb) && s.rec.State.Live() && s.rec.State != Paused
	s.mu.Unlock()
	if !mine {
		return
	}
	err := s.m.ping(sb)
	if err == nil {
		s.learn(sb)
	}
	if err == nil || s.m.ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	s.attachment.reattach()
	s.mu.Unlock()
	sb.Detach()
	s.m.log.WarnContext(s.m.ctx, "sandbox does not answer, attaching again", "session", s.key.String(), "sandbox", sb.ID(), "error", err)
	again, hangs, aerr := s.m.attachAgain(sb)
	switch {
	case aerr == nil:
		s.adopt(again, true, nil)
	case gone(aerr) || hangs:
		s.replace(sb, err)
	default:
		s.letGo(sb, aerr)
	}
}

// attachAgain makes a new connection to a sandbox that does not answer; hangs says that it is the sandbox which does not. An engine that
// stalls looks the same, and its sandboxes live on. So it is asked for something else, before and after: whoever answers that has not
// stalled.
func (m *Manager) attachAgain(sb *sandbox.Sandbox) (again *sandbox.Sandbox, hangs bool, err error) {
	if err := m.answers(sb.Backend()); err != nil {
		return nil, false, err
	}
	ctx, cancel := context.WithTimeout(m.ctx, m.opts.againWait)
	defer cancel()
	again, err = attach(ctx, sb.Backend(), sb.ID())
	if !errors.Is(err, context.DeadlineExceeded) {
		return again, false, err
	}
	if away := m.answers(sb.Backend()); away != nil {
		return nil, false, away
	}
	return nil, true, err
}

// answers says why a backend cannot be asked now, or nil.
func (m *Manager) answers(b sandbox.Backend) error {
	_, err := asked(m.ctx, b, m.opts.pingWait, b.List)
	return err
}

// replace gives a sandbox up as lost and has the session restored.
//
// Preconditions: the turn is taken.
func (s *Session) replace(sb *sandbox.Sandbox, cause error) {
	if s.m.ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	s.lose(cause)
	s.mu.Unlock()
	sb.Detach()
	s.m.begin(func() { s.revive(sb.Backend(), sb.ID()) })
}

// lose notes that the sandbox has gone and that something is done about it.
//
// Preconditions: mu is held.
func (s *Session) lose(cause error) {
	s.attachment.restore()
	s.become(Lost, fmt.Sprintf("its sandbox has gone and is being restored: %v", cause))
}

// revive restores a lost session from its last snapshot.
func (s *Session) revive(b sandbox.Backend, id string) {
	if s.take(s.m.ctx) != nil {
		return
	}
	defer s.give()
	if id != "" {
		s.m.stopLost(b, id)
	}
	var last error
	for {
		s.mu.Lock()
		if s.rec.State != Lost || !s.attachment.isRestoring() {
			s.mu.Unlock()
			return
		}
		s.rec.Sandbox = ""
		s.rec.Losses = slices.DeleteFunc(s.rec.Losses, func(t time.Time) bool { return time.Since(t) > RestoreWindow })
		n, why := len(s.rec.Losses), s.rec.Reason
		if n < RestoreAttempts {
			s.rec.Losses = append(s.rec.Losses, time.Now().UTC())
		}
		s.mu.Unlock()
		_ = s.save(s.m.ctx) // told there
		if n >= RestoreAttempts {
			s.giveUp(fmt.Sprintf("restored %d times within %s, and lost again: %s", RestoreAttempts, RestoreWindow, first(errorText(last), why)))
			return
		}
		row, snap, err := s.lastSnapshot(s.m.ctx)
		if s.m.ctx.Err() != nil {
			return
		}
		if err != nil || snap == nil {
			s.giveUp("there is no snapshot to restore: " + first(errorText(err), why))
			return
		}
		select {
		case <-time.After(backoff[n]):
		case <-s.m.ctx.Done():
			return // the next manager goes on
		}
		if last = s.reviveFrom(b, row, snap); last == nil || s.m.ctx.Err() != nil {
			return
		}
		if err := s.m.answers(b); err != nil && s.m.ctx.Err() == nil {
			s.m.log.WarnContext(s.m.ctx, "session cannot be restored while its backend is away", "session", s.key.String(), "error", last)
			if !s.awaitBackend(b, err) {
				return
			}
			if id != "" {
				s.m.stopLost(b, id)
			}
			continue
		}
		s.m.log.WarnContext(s.m.ctx, "session could not be restored", "session", s.key.String(), "snapshot", row.Name, "error", last)
	}
}

// awaitBackend waits until a backend that is away can be asked again. The attempt that found it away does not count, and callers are told
// instead of kept waiting. False: nobody needs it any more.
//
// Preconditions: the turn is taken.
func (s *Session) awaitBackend(b sandbox.Backend, away error) bool {
	s.mu.Lock()
	s.attachment.stall(away)
	s.rec.Losses = s.rec.Losses[:max(0, len(s.rec.Losses)-1)]
	s.mu.Unlock()
	for away != nil {
		select {
		case <-time.After(awayPause):
		case <-s.freed:
			return false
		case <-s.m.ctx.Done():
			return false // the next manager goes on
		}
		away = s.m.answers(b)
	}
	s.mu.Lock()
	s.attachment.resume()
	s.mu.Unlock()
	return true
}

// stopLost removes what is left of a lost sandbox.
func (m *Manager) stopLost(b sandbox.Backend, id string) {
	ctx, cancel := context.WithTimeout(m.ctx, stopWait)
	defer cancel()
	if err := b.Stop(ctx, id); err != nil && m.ctx.Err() == nil {
		m.log.WarnContext(ctx, "something of a lost sandbox is left", "sandbox", id, "error", err)
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// reviveFrom makes a lost session live again with the state of a snapshot.
func (s *Session) reviveFrom(b sandbox.Backend, row store.Snapshot, snap *sandbox.Snapshot) error {
	ctx, cancel := context.WithTimeout(s.m.ctx, makeWait)
	defer cancel()
	s.mu.Lock()
	labels := s.m.labels(&s.rec)
	s.mu.Unlock()
	defer s.m.hold(snap)()
	sb, err := sandbox.Restore(ctx, b, snap, sandbox.RestoreOptions{Labels: labels})
	if err != nil {
		return err
	}
	failpoint("revive.made")
	from := row.Created
	s.adopt(sb, true, func() {
		s.rec.Restored++
		s.rec.StateFrom = &from
		if s.become(Ready, fmt.Sprintf("lost, and restored from snapshot %s of %s", row.Name, from.Format(time.RFC3339))) {
			s.emit(Event{Kind: "restored", Reason: "its sandbox was lost", Attrs: map[string]string{"snapshot": row.Name, "state_from": from.Format(time.RFC3339Nano)}}, true)
		}
	})
	s.audit(ctx, Entry{Action: "restore", Detail: row.Name + ", because the sandbox was lost"})
	_ = s.save(ctx) // told there
	return nil
}

// lastSnapshot gives the snapshot a lost session goes back to: the one its state came from last, or else its latest.
func (s *Session) lastSnapshot(ctx context.Context) (store.Snapshot, *sandbox.Snapshot, error) {
	s.mu.Lock()
	base := s.rec.Base
	s.mu.Unlock()
	var rows []store.Snapshot
	var err error
	if base != "" {
		if rows, err = s.m.store.FindSnapshots(ctx, store.SnapshotQuery{ID: base}); err != nil {
			return store.Snapshot{}, nil, err
		}
	}
	if len(rows) == 0 {
		if rows, err = s.m.store.FindSnapshots(ctx, store.SnapshotQuery{SessionID: s.id}); err != nil || len(rows) == 0 {
			return store.Snapshot{}, nil, err
		}
	}
	row := rows[len(rows)-1]
	snap, err := imageOf(row)
	return row, snap, err
}

// giveUp leaves a session lost, and tells of it.
func (s *Session) giveUp(reason string) {
	s.mu.Lock()
	s.attachment.detach()
	s.rec.Hopeless = true
	lost := s.become(Lost, reason)
	s.mu.Unlock()
	if !lost {
		return
	}
	_ = s.save(s.m.ctx) // told there
	s.m.log.ErrorContext(s.m.ctx, "session is lost", "session", s.key.String(), "id", s.id, "reason", reason)
	s.audit(s.m.ctx, Entry{Action: "lost", Detail: reason})
	if s.m.opts.Webhook != "" {
		s.m.begin(s.alert)
	}
}

// Alert is the message that is sent to the webhook.
type Alert struct {
	Event   string    `json:"event"` // session.lost
	Time    time.Time `json:"time"`
	Session Info      `json:"session"`
}

// alert tells the webhook that the session is lost.
func (s *Session) alert() {
	i := s.Info()
	i.Spec.Env = nil // may hold secrets
	err := webhook.New(s.m.opts.Webhook).Send(s.m.ctx, Alert{Event: "session.lost", Time: time.Now().UTC(), Session: i})
	if err != nil && s.m.ctx.Err() == nil {
		s.m.log.ErrorContext(s.m.ctx, "webhook could not be told of a lost session", "session", s.key.String(), "error", err)
	}
}

// ping asks a sandbox whether it is well.
func (m *Manager) ping(sb *sandbox.Sandbox) error {
	ctx, cancel := context.WithTimeout(m.ctx, m.opts.pingWait)
	defer cancel()
	return sb.Ping(ctx)
}

// checkHealth asks sandboxes whether they are well, and looks for those that could not be reached.
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
			skip := s.rec.State != Ready || s.attachment.state == attReserved
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

// checkHealth asks the sandbox whether it is well.
func (s *Session) checkHealth() {
	s.mu.Lock()
	sb := s.attachment.sandbox
	s.mu.Unlock()
	if sb == nil {
		_ = s.bring(s.m.ctx) // who needs it is told
		return
	}
	err := s.m.ping(sb)
	s.mu.Lock()
	if !s.attachment.has(sb) { // another has taken its place, and has missed nothing
		s.mu.Unlock()
		return
	}
	missed, unverified := s.attachment.pinged(err), s.attachment.isUnverified()
	tolerated := (s.calls+len(s.background) > 0 || unverified) && missed < busyMisses
	s.mu.Unlock()
	look := err != nil && !tolerated || err == nil && unverified
	if look && s.m.ctx.Err() == nil {
		s.suspect(sb)
	}
}
