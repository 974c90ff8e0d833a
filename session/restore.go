package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/sandbox"
)

// Restore replaces the state of the session by a snapshot of the same tenant. The network policy stays. ref is the name
// of a snapshot of this session, or "session@name".
func (s *Session) Restore(ctx context.Context, ref string) error {
	err := s.restore(ctx, ref)
	s.audit(ctx, Entry{Action: "restore", Detail: ref, Error: errorCode(err)})
	return err
}

func (s *Session) restore(ctx context.Context, ref string) error {
	if err := s.awaitCreated(ctx); err != nil {
		return err
	}
	row, v, err := s.m.findRef(ctx, s.key, ref)
	if err != nil {
		return err
	}
	defer s.m.pinImage(v.Image)()
	b := s.m.known(v.Image.Backend)
	if b == nil {
		return &v1.Error{
			Code:    v1.CodeBackendUnknown,
			Op:      "restore snapshot",
			Message: fmt.Sprintf("the snapshot's backend %q is not configured", v.Image.Backend),
			Remedy:  "configure that backend and start again",
		}
	}
	if err := s.acquireTurn(ctx); err != nil {
		return err
	}
	defer s.releaseTurn()
	if err := s.reserve(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.makeWait())
	defer cancel()
	return s.replaceSandbox(ctx, b, row, v)
}

// reserve reserves the sandbox if no call uses it.
//
// Preconditions: the turn is held.
func (s *Session) reserve() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.rec.State.Live() || s.rec.State == v1.StateEnding {
		return s.refusal(time.Now())
	}
	if s.calls > 0 {
		return &v1.Error{
			Code:    v1.CodeBusy,
			Op:      "restore snapshot",
			Message: "a cell, a command or a transfer is in progress",
			Remedy:  "wait for it, or cancel it",
			Retry:   true,
		}
	}
	s.attachment.reserve()
	return nil
}

// replaceSandbox replaces the session's sandbox by one made from a snapshot. Until the new sandbox is in the store, the
// old one is the session's sandbox.
//
// Preconditions: the turn is held, and the sandbox reserved.
func (s *Session) replaceSandbox(ctx context.Context, b sandbox.Backend, row store.Snapshot, v snapshotRecord) error {
	s.mu.Lock()
	next := s.rec
	s.mu.Unlock()
	before := next
	setIdle, err := next.idleOn(ctx, b, "open another session from the snapshot, with on_idle end or keep")
	if err == nil {
		err = s.reserveLimits(ctx, v.Spec.Limits)
	}
	if err != nil {
		s.release()
		return err
	}
	v.Spec.Network = next.Spec.Network // it is not part of the state that a snapshot brings back
	next.Spec, next.SpecHash = v.Spec, v.SpecHash
	sb, err := s.restoreSandbox(ctx, b, v.Image, sandbox.RestoreOptions{Labels: s.m.labels(&next)})
	if err != nil {
		s.m.ledger.revert(&before)
		s.release()
		return err
	}
	failpoint("restore.made")
	err = s.saveAhead(ctx, func(r *record) {
		r.Backend, r.Sandbox, r.Spec, r.SpecHash = b.Name(), sb.ID(), v.Spec, v.SpecHash
	})
	if err != nil {
		s.m.ledger.revert(&before)
		s.release()
		return errors.Join(err, sb.Close())
	}
	failpoint("restore.saved")
	s.mu.Lock()
	old, oldID, oldBackend, oldImage := s.attachment.sandbox, s.rec.Sandbox, s.rec.Backend, s.rec.Hibernation
	s.mu.Unlock()
	s.adopt(sb, true, func() {
		r := &s.rec
		if !s.setState(v1.StateReady, "restored from snapshot "+row.Session+"@"+row.Name) {
			return // the session has ended meanwhile, and dispose waits for the turn
		}
		r.Backend, r.Spec, r.SpecHash, r.Hibernation, r.HibernatedAt = b.Name(), v.Spec, v.SpecHash, nil, time.Time{}
		r.Base, r.BaseName, r.StateFrom, r.LostForGood, r.Losses = row.ID, row.Name, nil, false, nil
		setIdle(r)
		r.Used = time.Now().UTC()
		s.background = nil
		attrs := map[string]string{"snapshot": row.Session + "@" + row.Name}
		s.emit(Event{Kind: "restored", Reason: "by hand", Attrs: attrs}, true)
	})
	_ = s.save(ctx) // save logs the error, and the reaper retries; the session is already restored
	s.setMovedFrom(oldID)
	switch known := s.m.known(oldBackend); {
	case old != nil:
		err = old.Close()
	case oldID != "" && known != nil:
		err = known.Stop(ctx, oldID)
	}
	failpoint("restore.stopped")
	if oldImage != nil {
		s.m.dropImage(ctx, oldImage)
	}
	return err
}
