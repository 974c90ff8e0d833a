package session

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"syscall"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// goneEvery is the time between two checks whether a process has ended.
const goneEvery = 20 * time.Millisecond

// End ends the session: SIGTERM to everything that runs in it, including what ended commands left behind, EndGrace,
// SIGKILL. Its key is free at once. Ending twice is no error. A paused session is killed without SIGTERM. If the backend does not answer, the
// error says so: the session is then ending, keeps its key, and ends as soon as the backend answers.
func (s *Session) End(ctx context.Context, reason string) error {
	if reason == "" {
		reason = "by its owner"
	}
	if err := s.backendAway(); err != nil && s.postponeEnd(ctx, reason, err) {
		return &v1.Error{
			Code: v1.CodeBackendMissing, Op: "end session", Message: "its backend does not answer; the session ends when the backend answers",
			Remedy: "start the backend's service again", Retry: true, Err: err,
		}
	}
	_, err := s.finish(ctx, v1.StateEnded, reason, func() bool { return true })
	if v1.CodeOf(err) == v1.CodeDiskFull {
		// It has ended, and its record is written once there is room.
		s.m.log.WarnContext(ctx, "the record of an ended session waits for room on the disk", "session", s.key.String(), "error", err)
		return nil
	}
	return err
}

// backendAway returns the error of a backend that does not answer and without which the session's sandbox cannot be ended, or nil.
func (s *Session) backendAway() error {
	s.mu.Lock()
	needed := s.rec.Sandbox != "" && s.rec.State.Live() && s.rec.State != v1.StateCreating
	s.mu.Unlock()
	if !needed {
		return nil
	}
	b, err := s.backend()
	if err != nil {
		return nil //nolint:nilerr // no backend is known that will ever end it
	}
	if err := s.m.probeBackend(b); v1.CodeOf(err) == v1.CodeBackendMissing {
		return err
	}
	return nil
}

// postponeEnd marks the session as ending until its backend answers. It reports false if the session has ended meanwhile.
func (s *Session) postponeEnd(ctx context.Context, reason string, away error) bool {
	s.mu.Lock()
	before := s.rec.State
	if !s.setState(v1.StateEnding, fmt.Sprintf("%s, as soon as its backend answers: %v", reason, away)) {
		s.mu.Unlock()
		return false
	}
	s.rec.Ending, s.endRetryAt = reason, time.Now().Add(backendPollInterval)
	if before != v1.StateEnding {
		s.rec.EndingFrom = before
	}
	s.mu.Unlock()
	_ = s.save(context.WithoutCancel(ctx)) // it is logged, and tried again
	s.audit(ctx, Entry{Action: string(v1.StateEnding), Detail: reason})
	return true
}

// retryEnd ends a session that is ending if its backend answers.
func (s *Session) retryEnd() {
	if s.backendAway() != nil {
		s.mu.Lock()
		s.endRetryAt = time.Now().Add(backendPollInterval)
		s.mu.Unlock()
		return
	}
	s.mu.Lock()
	reason := s.rec.Ending
	s.mu.Unlock()
	_, _ = s.finish(s.m.ctx, v1.StateEnded, reason, func() bool { return true }) // it is logged
}

// finish moves a session to a final state if may allows it, and removes everything of it in the background. Its key
// is free once the store is written.
func (s *Session) finish(ctx context.Context, last State, reason string, may func() bool) (bool, error) {
	s.mu.Lock()
	if !s.rec.State.Live() || !may() {
		s.mu.Unlock()
		return false, nil
	}
	before := s.rec.State
	if before == v1.StateEnding {
		before = s.rec.EndingFrom
	}
	if !s.setState(last, reason) {
		s.mu.Unlock()
		return false, nil
	}
	s.rec.Ended = time.Now().UTC()
	s.mu.Unlock()
	s.m.ledger.release(s.id)
	failpoint("end.begun")
	ctx = context.WithoutCancel(ctx)
	err := s.save(ctx)
	if err != nil {
		s.m.deferWrite(s, s.save)
	}
	failpoint("end.saved")
	// Begun before the manager forgets the session, because Close waits for sessions and background work. A manager that is
	// leaving does not begin it, and the next one finds a stray.
	s.m.begin(func() { <-s.freed; s.dispose(before) })
	s.m.forget(s)
	close(s.freed)
	if g, ok := s.m.opts.Gate.(forgetter); ok {
		g.Forget(s.key.Tenant, s.key.Name)
	}
	s.audit(ctx, Entry{Action: string(last), Detail: reason, Error: errorCode(err)})
	return true, err
}

// dispose removes the sandbox and the hibernation image of an ended session.
func (s *Session) dispose(before State) {
	defer close(s.disposed)
	s.turn <- struct{}{} // never released
	s.mu.Lock()
	sb, id, image, name := s.attachment.detach(), s.rec.Sandbox, s.rec.Hibernation, s.rec.Backend
	s.events.ring = nil
	s.mu.Unlock()
	b := s.m.known(name)
	if sb == nil && id != "" && b != nil && before != v1.StatePaused && before != v1.StateLost {
		sb = s.attachEnded(b, id)
	}
	var err error
	switch {
	case sb != nil:
		if before != v1.StatePaused && sb.Frozen() == nil { // a frozen process does not handle signals
			s.terminate(sb)
		}
		failpoint("end.terminated")
		err = sb.Close()
	case id != "" && b != nil:
		ctx, cancel := s.m.cleanupContext()
		err = b.Stop(ctx, id)
		cancel()
	}
	failpoint("end.stopped")
	ctx, cancel := s.m.cleanupContext() // a new one, however long that took
	defer cancel()
	if err != nil {
		s.m.log.WarnContext(ctx, "sandbox of an ended session is left for the next look at strays", "session", s.key.String(), "sandbox", id, "error", err)
		return
	}
	s.mu.Lock()
	s.rec.Sandbox, s.rec.Hibernation = "", nil
	s.mu.Unlock()
	_ = s.save(ctx) // it is logged, and recovery needs no record
	if image != nil {
		s.m.dropImage(ctx, image)
	}
	if err := s.m.store.DropTokens(ctx, s.id); err != nil {
		s.m.log.WarnContext(ctx, "tokens of an ended session are left", "session", s.key.String(), "error", err)
	}
}

// cleanupContext returns a context for a last clean-up, even of a manager that is closing.
func (m *Manager) cleanupContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(m.ctx), stopWait)
}

// attachEnded attaches the detached sandbox of an ended session, so that what runs in it gets SIGTERM. It returns nil
// if that fails.
func (s *Session) attachEnded(b sandbox.Backend, id string) *sandbox.Sandbox {
	ctx, cancel := context.WithTimeout(s.m.ctx, heldWait+s.m.opts.endGrace)
	defer cancel()
	sb, err := attachSandbox(ctx, b, id)
	if err != nil {
		return nil // it is gone, or does not answer, and is killed
	}
	return sb
}

// terminate sends SIGTERM to everything that runs, and waits until it has ended, for EndGrace at most. A manager that
// is closing does not wait.
func (s *Session) terminate(sb *sandbox.Sandbox) {
	ctx, cancel := context.WithTimeout(s.m.ctx, s.m.opts.endGrace)
	defer cancel()
	ops, err := sb.Operations(ctx)
	if err != nil {
		return // it is gone, or does not answer, and is killed
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
				_, _ = sb.Follow(grace, t.op, sandbox.FollowOptions{StdoutOffset: farEnd, StderrOffset: farEnd}) // only its end matters
			}
			awaitGone(grace, sb, t.pids)
		})
	}
	wg.Wait()
}

// tree is what one operation can signal: a command and what it started, or an interpreter and what its cells started.
type tree struct {
	op      string
	running bool
	pids    []int // known processes beside the operation's own
}

// trees returns everything that can still be signalled, once each, because many programs take a second SIGTERM for
// impatience. It includes an ended command that left processes behind, and an interpreter as long as one of its cells
// is remembered.
func trees(ops []sandbox.Operation, contexts []sandbox.Context) []tree {
	var out []tree
	of := map[string]*tree{} // by context
	for _, c := range contexts {
		of[c.Name] = &tree{pids: []int{c.PID}}
	}
	for _, o := range ops {
		if o.Kind == v1.OperationProcess {
			continue // the operation that has left it is in the list, too
		}
		t := of[o.Context]
		if o.Kind != "cell" {
			t = &tree{}
		}
		if t == nil {
			continue // its interpreter has ended, with all that it started
		}
		if o.Kind == "cell" && o.PID == 0 {
			continue // it never had an interpreter, and cannot be signalled
		}
		if !t.running { // the latest cell: an earlier one may have had another interpreter
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

// awaitGone waits until none of these processes exists in the sandbox.
func awaitGone(ctx context.Context, sb *sandbox.Sandbox, pids []int) {
	for _, pid := range pids {
		for {
			_, err := sb.Files().Stat(ctx, "/proc/"+strconv.Itoa(pid))
			if err != nil {
				break // it has ended, or the time is up, or the sandbox is gone
			}
			select {
			case <-time.After(goneEvery):
			case <-ctx.Done():
				return
			}
		}
	}
}
