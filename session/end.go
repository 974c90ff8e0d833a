package session

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
)

// goneEvery is the time between two looks whether a process that was asked to end has done so.
const goneEvery = 20 * time.Millisecond

func joined(errs ...error) error { return errors.Join(errs...) }

// End ends it: SIGTERM to everything that runs in it, what ended commands have left behind included, EndGrace, SIGKILL. Its key is free at
// once. Ending twice is no error. One that is paused hears nothing and is killed.
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
	// Begun before the manager forgets the session: who closes it waits for one or the other. A manager that is being closed already leaves it
	// to the next, which finds a stray.
	s.m.begin(func() { <-s.freed; s.dispose(before) })
	s.m.forget(s)
	close(s.freed)
	if g, ok := s.m.opts.Gate.(forgetter); ok {
		g.Forget(s.key.Tenant, s.key.Name)
	}
	s.audit(ctx, Entry{Action: string(last), Detail: reason, Error: errorCode(err)})
	return true, err
}

// dispose removes what an ended session has: its sandbox, the image it slept in.
func (s *Session) dispose(before State) {
	defer close(s.disposed)
	s.turn <- struct{}{} // for good
	s.mu.Lock()
	sb, id, image, name := s.attachment.detach(), s.rec.Sandbox, s.rec.Hibernation, s.rec.Backend
	s.events.ring = nil
	s.mu.Unlock()
	b := s.m.known(name)
	if sb == nil && id != "" && b != nil && before != Paused && before != Lost {
		sb = s.reach(b, id)
	}
	var err error
	switch {
	case sb != nil:
		if before != Paused { // who is frozen hears nothing
			s.terminate(sb)
		}
		failpoint("end.terminated")
		err = sb.Close()
	case id != "" && b != nil:
		ctx, cancel := s.m.parting()
		err = b.Stop(ctx, id)
		cancel()
	}
	failpoint("end.stopped")
	ctx, cancel := s.m.parting() // however long that took
	defer cancel()
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

// parting gives time for a last thing, also to a manager that is being closed.
func (m *Manager) parting() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(m.ctx), stopWait)
}

// reach gives the sandbox of an ended session to which nobody was attached, or nil: what runs in it shall hear of the end, too.
func (s *Session) reach(b sandbox.Backend, id string) *sandbox.Sandbox {
	ctx, cancel := context.WithTimeout(s.m.ctx, heldWait+s.m.opts.endGrace)
	defer cancel()
	sb, err := attach(ctx, b, id)
	if err != nil {
		return nil // it has gone, or does not answer: then it is killed
	}
	return sb
}

// terminate asks everything that runs to end, and waits for that as long as it may take. The guest has as long to say what runs. A manager
// that is being closed does not wait.
func (s *Session) terminate(sb *sandbox.Sandbox) {
	ctx, cancel := context.WithTimeout(s.m.ctx, s.m.opts.endGrace)
	defer cancel()
	ops, err := sb.Operations(ctx)
	if err != nil {
		return // it has gone, or does not answer: then it is killed
	}
	contexts, err := sb.Contexts(ctx)
	if err != nil {
		return
	}
	grace, cancel := context.WithTimeout(s.m.ctx, s.m.opts.endGrace)
	defer cancel()
	var wg sync.WaitGroup
	for _, t := range trees(ops, contexts) {
		wg.Go(func() {
			if sb.Signal(grace, t.op, syscall.SIGTERM, sandbox.SignalOptions{Tree: true}) != nil {
				return
			}
			if t.running {
				_, _ = sb.Follow(grace, t.op, sandbox.FollowOptions{StdoutOffset: farEnd, StderrOffset: farEnd}) // its end is all that matters
			}
			awaitGone(grace, sb, t.pids)
		})
	}
	wg.Wait()
}

// tree is what one operation can be signalled with: a command and what it has started, or an interpreter and what its cells have.
type tree struct {
	op      string
	running bool
	pids    []int // those known of, beside the operation's own
}

// trees finds everything that can still be signalled, once each: a second SIGTERM means haste to many programs. A command that has ended is
// among them if it left something behind, and an interpreter as long as one of its cells is remembered.
func trees(ops []sandbox.Operation, contexts []sandbox.Context) []tree {
	var out []tree
	of := map[string]*tree{} // by context
	for _, c := range contexts {
		of[c.Name] = &tree{pids: []int{c.PID}}
	}
	for _, o := range ops {
		t := of[o.Context]
		if o.Kind != "cell" {
			t = &tree{}
		}
		if t == nil {
			continue // its interpreter has gone, and all that it had started
		}
		if o.Kind == "cell" && o.PID == 0 {
			continue // it never had an interpreter, and cannot be signalled
		}
		if !t.running { // the latest: one before it may have had another interpreter
			t.op, t.running = o.ID, o.Running
		}
		if o.Verdict != nil {
			for _, p := range o.Verdict.Survivors {
				if !p.Killed {
					t.pids = append(t.pids, p.PID)
				}
			}
		}
		if o.Kind != "cell" && (t.running || len(t.pids) > 0) {
			out = append(out, *t)
		}
	}
	for _, t := range of {
		if t.op != "" {
			out = append(out, *t)
		}
	}
	return out
}

// awaitGone waits until the sandbox no longer has any of these processes.
func awaitGone(ctx context.Context, sb *sandbox.Sandbox, pids []int) {
	for _, pid := range pids {
		for {
			_, err := sb.Files().Stat(ctx, "/proc/"+strconv.Itoa(pid))
			if err != nil {
				break // it has ended, or the time is up, or nobody answers any more
			}
			select {
			case <-time.After(goneEvery):
			case <-ctx.Done():
				return
			}
		}
	}
}
