package session

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/internal/webhook"
	"github.com/recluse-dev/recluse/sandbox"
)

// backendPollInterval is the time between two probes of a backend that does not answer.
const backendPollInterval = time.Second

// backoff is the pause before each attempt to restore a lost session. The first attempt is immediate, because most
// losses are single ones.
var backoff = [RestoreAttempts]time.Duration{0, time.Second, 5 * time.Second}

// handleLoss marks the session as lost, and begins to restore it.
//
// Preconditions: the turn is held.
func (s *Session) handleLoss(sb *sandbox.Sandbox, cause error) {
	if s.m.ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	s.markLost(cause)
	s.mu.Unlock()
	sb.Detach()
	s.m.begin(func() { s.restoreLost(sb.Backend(), sb.ID()) })
}

// markLost records that the sandbox is gone and the session is being restored.
//
// Preconditions: s.mu is held.
func (s *Session) markLost(cause error) {
	s.attachment.restore()
	s.setState(v1.StateLost, fmt.Sprintf("its sandbox is gone and is being restored: %v", cause))
}

// restoreLost restores a lost session from its latest snapshot.
func (s *Session) restoreLost(b sandbox.Backend, id string) {
	if s.acquireTurn(s.m.ctx) != nil {
		return
	}
	defer s.releaseTurn()
	if id != "" {
		s.m.stopLost(b, id)
	}
	var last error
	for {
		s.mu.Lock()
		if s.rec.State != v1.StateLost || !s.attachment.isRestoring() {
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
		_ = s.save(s.m.ctx) // save logs the error
		if n >= RestoreAttempts {
			s.abandonRestore(fmt.Sprintf("restored %d times within %s, and lost again: %s",
				RestoreAttempts, RestoreWindow, cmp.Or(errorText(last), why)))
			return
		}
		row, snap, err := s.lastSnapshot(s.m.ctx)
		if s.m.ctx.Err() != nil {
			return
		}
		if err != nil || snap == nil {
			s.abandonRestore("no snapshot to restore: " + cmp.Or(errorText(err), why))
			return
		}
		select {
		case <-time.After(s.m.opts.backoff[n]):
		case <-s.m.ctx.Done():
			return // the next manager continues
		}
		if last = s.restoreLostFrom(b, row, snap); last == nil || s.m.ctx.Err() != nil {
			return
		}
		if err := s.m.probeBackend(b); err != nil && s.m.ctx.Err() == nil {
			s.m.log.WarnContext(s.m.ctx, "session cannot be restored until its backend answers",
				"session", s.key.String(), "error", last)
			if !s.awaitBackend(b, err) {
				return
			}
			if id != "" {
				s.m.stopLost(b, id)
			}
			continue
		}
		s.m.log.WarnContext(s.m.ctx, "session could not be restored",
			"session", s.key.String(), "snapshot", row.Name, "error", last)
	}
}

// awaitBackend waits until a backend answers again. Meanwhile calls fail with the error of the backend. The failed
// attempt to restore does not count. awaitBackend returns false if the session has ended or the manager closes.
//
// Preconditions: the turn is held.
func (s *Session) awaitBackend(b sandbox.Backend, away error) bool {
	s.mu.Lock()
	s.attachment.stall(away)
	s.rec.Losses = s.rec.Losses[:max(0, len(s.rec.Losses)-1)]
	s.mu.Unlock()
	for away != nil {
		select {
		case <-time.After(backendPollInterval):
		case <-s.freed:
			return false
		case <-s.m.ctx.Done():
			return false // the next manager continues
		}
		away = s.m.probeBackend(b)
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
		m.log.WarnContext(ctx, "lost sandbox could not be removed completely", "sandbox", id, "error", err)
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// restoreLostFrom restores a lost session from a snapshot.
func (s *Session) restoreLostFrom(b sandbox.Backend, row store.Snapshot, snap *sandbox.Snapshot) error {
	ctx, cancel := context.WithTimeout(s.m.ctx, s.makeWait())
	defer cancel()
	s.mu.Lock()
	labels := s.m.labels(&s.rec)
	s.mu.Unlock()
	defer s.m.pinImage(snap)()
	sb, err := s.restoreSandbox(ctx, b, snap, sandbox.RestoreOptions{Labels: labels})
	if err != nil {
		return err
	}
	failpoint("revive.made")
	from := row.Created
	s.adopt(sb, true, func() {
		s.rec.Restored++
		s.rec.StateFrom = &from
		reason := fmt.Sprintf("restored from snapshot %s of %s after its sandbox was lost",
			row.Name, from.Format(time.RFC3339))
		if s.setState(v1.StateReady, reason) {
			attrs := map[string]string{"snapshot": row.Name, "state_from": from.Format(time.RFC3339Nano)}
			s.emit(Event{Kind: "restored", Reason: "its sandbox was lost", Attrs: attrs}, true)
		}
	})
	s.audit(ctx, Entry{Action: "restore", Detail: row.Name + ", because the sandbox was lost"})
	_ = s.save(ctx) // save logs the error
	return nil
}

// lastSnapshot returns the snapshot from which a lost session is restored: the one that its state came from last, or
// else its latest. The snapshot is nil if there is none.
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
		rows, err = s.m.store.FindSnapshots(ctx, store.SnapshotQuery{SessionID: s.id})
		if err != nil || len(rows) == 0 {
			return store.Snapshot{}, nil, err
		}
	}
	row := rows[len(rows)-1]
	snap, err := imageOf(row)
	return row, snap, err
}

// abandonRestore marks a session as lost for good, and sends an alert to the webhook.
func (s *Session) abandonRestore(reason string) {
	s.mu.Lock()
	s.attachment.detach()
	s.rec.LostForGood = true
	lost := s.setState(v1.StateLost, reason)
	s.mu.Unlock()
	if !lost {
		return
	}
	_ = s.save(s.m.ctx) // save logs the error
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

// alert notifies the webhook that the session is lost.
func (s *Session) alert() {
	i := s.Info()
	i.Spec.Env = nil // may hold secrets
	err := webhook.New(s.m.opts.Webhook).Send(s.m.ctx, Alert{Event: "session.lost", Time: time.Now().UTC(), Session: i})
	if err != nil && s.m.ctx.Err() == nil {
		s.m.log.ErrorContext(s.m.ctx, "webhook could not be notified of a lost session",
			"session", s.key.String(), "error", err)
	}
}
