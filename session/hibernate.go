package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

// Pause freezes the session in memory. Calls that run wait, and new ones are refused, until Resume.
func (s *Session) Pause(ctx context.Context) error {
	err := s.pause(ctx)
	s.audit(ctx, Entry{Action: "pause", Error: errorCode(err)})
	return err
}

func (s *Session) pause(ctx context.Context) error {
	if err := s.made(ctx); err != nil {
		return err
	}
	if s.Info().State == Paused {
		return nil
	}
	if _, err := s.ready(ctx); err != nil {
		return err
	}
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.give()
	s.mu.Lock()
	sb, err := s.attachment.sandbox, s.refusal(time.Now())
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if sb == nil {
		return &sandbox.Error{Code: sandbox.CodeBusy, Op: "pause session", Message: "the session changes at this moment", Retry: true}
	}
	if err := sb.Pause(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	s.become(Paused, "by hand")
	s.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	if err := s.save(ctx); err != nil { // a server after this one would take it for one that hangs
		return joined(err, s.unpause(ctx, "it could not be noted that it is paused"))
	}
	return nil
}

// Resume undoes Pause and Hibernate. One that is neither is left alone.
func (s *Session) Resume(ctx context.Context) error {
	err := s.resume(ctx)
	s.audit(ctx, Entry{Action: "resume", Error: errorCode(err)})
	return err
}

func (s *Session) resume(ctx context.Context) error {
	if err := s.made(ctx); err != nil {
		return err
	}
	if err := s.take(ctx); err != nil {
		return err
	}
	err := s.unpause(context.WithoutCancel(ctx), "resumed")
	s.give()
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

// unpause lets a paused session go on.
//
// Preconditions: the turn is taken.
func (s *Session) unpause(ctx context.Context, reason string) error {
	s.mu.Lock()
	state, id := s.rec.State, s.rec.Sandbox
	s.mu.Unlock()
	if state != Paused {
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
	s.become(Ready, reason)
	s.mu.Unlock()
	_ = s.save(ctx) // told there, and tried again; it goes on already
	return nil
}

// Hibernate writes the session to disk and gives its memory back. The next call brings it back. Background commands sleep with it; a
// call that somebody waits for makes it busy.
func (s *Session) Hibernate(ctx context.Context) error {
	err := s.hibernate(ctx, "by hand", func() error {
		if s.calls > 0 {
			return &sandbox.Error{
				Code: sandbox.CodeBusy, Op: "hibernate session", Message: "a cell, a command or a transfer is under way",
				Remedy: "wait for it, or cancel it", Retry: true,
			}
		}
		return nil
	})
	s.audit(ctx, Entry{Action: "hibernate", Error: errorCode(err)})
	return err
}

// hibernate puts the session to sleep unless object, which is called with mu held, has something against it.
func (s *Session) hibernate(ctx context.Context, reason string, object func() error) error {
	if err := s.made(ctx); err != nil {
		return err
	}
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.give()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), makeWait)
	defer cancel()
	sb, err := s.freeze(ctx, object)
	if err != nil || sb == nil {
		return err
	}
	s.mu.Lock()
	labels := s.m.imageLabels(&s.rec, kindHibernation)
	s.mu.Unlock()
	seen := glanceAt(ctx, sb)
	failpoint("hibernate.begun")
	s.leave(sb.ID()) // whoever listens hears of its end before we do; one who is told so of a sandbox that is lost in this moment asks again, and is told
	snap, err := sb.Snapshot(ctx, sandbox.SnapshotOptions{Labels: labels, Stop: true})
	failpoint("hibernate.stopped")
	if snap == nil {
		s.leave("")
		s.thaw()
		return err
	}
	if err != nil { // the image is whole, and something of the sandbox is left
		s.m.log.WarnContext(ctx, "something of a hibernated sandbox is left", "sandbox", sb.ID(), "error", err)
	}
	s.mu.Lock()
	s.attachment.detach()
	s.rec.layDown(snap, time.Now().UTC())
	s.rec.Asleep = seen
	s.events.ring = append([]Event(nil), s.events.ring[max(0, len(s.events.ring)-8):]...)
	s.become(Hibernated, reason)
	s.mu.Unlock()
	if err != nil {
		sb.Detach()
		_ = sb.Backend().Stop(ctx, sb.ID()) // the next look at strays tries again
	}
	err = s.save(ctx)
	failpoint("hibernate.saved")
	return err
}

// leave notes that the session goes away from its sandbox, or stays after all.
func (s *Session) leave(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attachment.movedFrom = id
}

// glance is what somebody sees of a sandbox who only looks. It is never changed.
type glance struct {
	Operations []sandbox.Operation `json:"operations,omitempty"`
	Contexts   []sandbox.Context   `json:"contexts,omitempty"`
	Guest      *sandbox.Guest      `json:"guest"`
	Shortened  bool                `json:"shortened,omitempty"` // there are more operations, which ended long ago
}

// glanceAt looks at a sandbox that is about to sleep. Without an answer there is none, and whoever looks later wakes it.
func glanceAt(ctx context.Context, sb *sandbox.Sandbox) *glance {
	ops, err1 := sb.Operations(ctx)
	contexts, err2 := sb.Contexts(ctx)
	guest, err3 := sb.Guest(ctx)
	if errors.Join(err1, err2, err3) != nil {
		return nil
	}
	all := len(ops)
	ops = lately(ops)
	return &glance{Operations: ops, Contexts: contexts, Guest: guest, Shortened: len(ops) < all}
}

// endedKept is how many operations that have ended are noted of a session that sleeps, which is to need hardly any memory.
const endedKept = 8

// lately leaves out what ended long ago.
func lately(ops []sandbox.Operation) []sandbox.Operation {
	ended := 0
	for _, o := range ops {
		if !o.Running {
			ended++
		}
	}
	return slices.DeleteFunc(ops, func(o sandbox.Operation) bool {
		if o.Running {
			return false
		}
		ended--
		return ended >= endedKept
	})
}

// seen gives what was noted of a session that sleeps; nil: it does not, or nothing was.
func (s *Session) seen() *glance {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rec.State != Hibernated || s.refusal(time.Now()) != nil {
		return nil
	}
	return s.rec.Asleep
}

// freeze keeps everybody from the sandbox and gives it, or nil if the session sleeps already.
//
// Preconditions: the turn is taken.
func (s *Session) freeze(ctx context.Context, object func() error) (*sandbox.Sandbox, error) {
	b, err := s.backend()
	if err != nil {
		return nil, err
	}
	if b.Capabilities(ctx).Snapshots != sandbox.SnapshotsMemory {
		return nil, backend.NotSupported(b.Name(), "hibernate: its snapshots hold no memory", "use a backend whose snapshots hold memory, or let the session end when it is idle")
	}
	s.mu.Lock()
	state, id := s.rec.State, s.rec.Sandbox
	if state == Hibernated {
		s.mu.Unlock()
		return nil, nil
	}
	if state != Paused {
		err = s.refusal(time.Now())
	}
	if err == nil {
		err = object()
	}
	if err == nil && state != Ready && state != Paused {
		err = &sandbox.Error{Code: sandbox.CodeBusy, Op: "hibernate session", Message: fmt.Sprintf("the session is %s", state), Retry: true}
	}
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	s.attachment.reserve()
	sb := s.attachment.sandbox
	s.mu.Unlock()
	if err := s.unpause(ctx, "resumed to be hibernated"); err != nil {
		s.thaw()
		return nil, err
	}
	if sb != nil {
		return sb, nil
	}
	if err := s.attach(ctx, id); err != nil {
		s.thaw()
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rec.State == Hibernated {
		s.attachment.release()
		return nil, nil
	}
	if sb = s.attachment.sandbox; sb == nil {
		return nil, &sandbox.Error{Code: CodeLost, Op: "hibernate session", Message: "its sandbox has gone", Retry: true}
	}
	s.attachment.reserve() // adopting it had ended that
	return sb, nil
}

// thaw lets everybody to the sandbox again.
func (s *Session) thaw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attachment.release()
}

// wake brings a hibernated session back. One that cannot be brought back now stays as it is: what is missing may come again, such as a file
// of the host that has changed. One whose image has gone or is damaged is lost.
//
// Preconditions: the turn is taken.
func (s *Session) wake(ctx context.Context) error {
	b, err := s.backend()
	if err != nil {
		return err
	}
	s.mu.Lock()
	image, labels := s.rec.Hibernation, s.m.labels(&s.rec)
	s.mu.Unlock()
	if image == nil {
		return &sandbox.Error{Code: sandbox.CodeInternal, Op: "wake session", Message: "the image it slept in is not known"}
	}
	ctx, cancel := context.WithTimeout(ctx, makeWait)
	defer cancel()
	sb, err := sandbox.Restore(ctx, b, image, sandbox.RestoreOptions{Labels: labels})
	if code := sandbox.CodeOf(err); code == sandbox.CodeNotFound || code == sandbox.CodeSnapshotCorrupt {
		s.mu.Lock()
		s.rec.Hibernation, s.rec.Slept, s.rec.Since = nil, time.Time{}, time.Now().UTC()
		s.lose(err)
		s.mu.Unlock()
		s.m.begin(func() { s.revive(b, "") })
		return nil
	}
	if err != nil {
		return err
	}
	failpoint("wake.made")
	s.adopt(sb, true, func() {
		if s.become(Ready, "woken") {
			s.rec.Hibernation, s.rec.Slept, s.rec.Since = nil, time.Time{}, time.Now().UTC()
		}
	})
	// The caller need not wait for the store: until it knows, the sandbox's labels do.
	s.m.begin(func() {
		ctx := context.WithoutCancel(s.m.ctx)
		if s.save(ctx) == nil {
			failpoint("wake.saved")
			s.m.dropImage(ctx, image)
		}
	})
	return nil
}
