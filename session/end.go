package session

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
)

// askWait is how long the guest may take to say what runs, when a session ends.
const askWait = 2 * time.Second

func joined(errs ...error) error { return errors.Join(errs...) }

// End ends it: SIGTERM to what runs, EndGrace, SIGKILL. Its key is free at once. Ending twice is no error.
func (s *Session) End(ctx context.Context, reason string) error {
	if reason == "" {
		reason = "by its owner"
	}
	_, err := s.finish(ctx, Ended, reason, func() bool { return true })
	return err
}

// finish takes a session to its last state, if it still may, and has everything of it removed in the background. Once the store
// knows, its key is free.
func (s *Session) finish(ctx context.Context, last State, reason string, may func() bool) (bool, error) {
	s.mu.Lock()
	if !s.rec.State.Live() || !may() {
		s.mu.Unlock()
		return false, nil
	}
	before := s.rec.State
	if !s.become(last, reason) {
		s.mu.Unlock()
		return false, nil
	}
	s.rec.Ended = time.Now().UTC()
	s.mu.Unlock()
	failpoint("end.begun")
	ctx = context.WithoutCancel(ctx)
	err := s.save(ctx)
	if err != nil {
		s.m.owe(s, s.save)
	}
	failpoint("end.saved")
	s.m.forget(s)
	close(s.freed)
	if g, ok := s.m.opts.Gate.(forgetter); ok {
		g.Forget(s.key.Tenant, s.key.Name)
	}
	s.audit(ctx, Entry{Action: string(last), Detail: reason, Error: errorCode(err)})
	s.m.begin(func() { s.dispose(before) }) // a manager that is being closed leaves it to the next, which finds a stray
	return true, err
}

// dispose removes what an ended session has: its sandbox, the image it slept in.
func (s *Session) dispose(before State) {
	defer close(s.disposed)
	s.turn <- struct{}{} // for good
	s.mu.Lock()
	sb, id, image, name := s.sb, s.rec.Sandbox, s.rec.Hibernation, s.rec.Backend
	s.sb = nil
	s.events.ring = nil
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.m.ctx), EndGrace+stopWait)
	defer cancel()
	var err error
	switch b := s.m.known(name); {
	case sb != nil:
		if before != Paused { // who is frozen hears nothing
			s.terminate(sb)
		}
		failpoint("end.terminated")
		err = sb.Close()
	case id != "" && b != nil:
		err = b.Stop(ctx, id)
	}
	failpoint("end.stopped")
	if err != nil {
		s.m.log.WarnContext(ctx, "sandbox of an ended session is left for the next look at strays", "session", s.key.String(), "sandbox", id, "error", err)
		return
	}
	s.mu.Lock()
	s.rec.Sandbox, s.rec.Hibernation = "", nil
	s.mu.Unlock()
	_ = s.save(ctx) // told there; recovery finds out by itself
	if image != nil {
		s.m.dropImage(ctx, image)
	}
	if err := s.m.store.DropTokens(ctx, s.id); err != nil {
		s.m.log.WarnContext(ctx, "tokens of an ended session are left", "session", s.key.String(), "error", err)
	}
}

// terminate asks everything that runs to end, and waits for that as long as it may take. A manager that is being closed does not wait.
func (s *Session) terminate(sb *sandbox.Sandbox) {
	ctx, cancel := context.WithTimeout(s.m.ctx, askWait)
	defer cancel()
	ops, err := sb.Operations(ctx)
	if err != nil {
		return // it has gone, or does not answer: then it is killed
	}
	grace, cancel := context.WithTimeout(s.m.ctx, EndGrace)
	defer cancel()
	var wg sync.WaitGroup
	for _, o := range ops {
		if !o.Running {
			continue
		}
		wg.Go(func() {
			if sb.Signal(grace, o.ID, syscall.SIGTERM, true) == nil {
				_, _ = sb.Follow(grace, o.ID, sandbox.FollowOptions{StdoutOffset: farEnd, StderrOffset: farEnd}) // its end is all that matters
			}
		})
	}
	wg.Wait()
}
