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

// End ends the session. Everything that runs in it, including survivors of ended commands, gets SIGTERM and, after
// EndGrace, SIGKILL. A paused session gets SIGKILL only. The key is free at once. Ending a session twice is not an
// error. If the backend does not answer, the error has code backend_missing: the session is then ending, keeps its key,
// and ends as soon as the backend answers.
func (s *Session) End(ctx context.Context, reason string) error {
	if reason == "" {
		reason = "by its owner"
	}
	if err := s.backendAway(); err != nil && s.postponeEnd(ctx, reason, err) {
		return &v1.Error{
			Code:    v1.CodeBackendMissing,
			Op:      "end session",
			Message: "the backend does not answer; the session ends as soon as it does",
			Remedy:  "restart the service of the backend",
			Retry:   true,
			Err:     err,
		}
	}
	_, err := s.finish(ctx, v1.StateEnded, reason, func() bool { return true })
	if v1.CodeOf(err) == v1.CodeDiskFull {
		// The session has ended. Its record is written when the disk has space again.
		s.m.log.WarnContext(ctx, "the record of an ended session is written when the disk has space again",
			"session", s.key.String(), "error", err)
		return nil
	}
	return err
}

// backendAway returns an error if the session's sandbox cannot be ended because its backend does not answer.
func (s *Session) backendAway() error {
	s.mu.Lock()
	needed := s.rec.Sandbox != "" && s.rec.State.Live() && s.rec.State != v1.StateCreating
	s.mu.Unlock()
	if !needed {
		return nil
	}
	b, err := s.backend()
	if err != nil {
		return nil //nolint:nilerr // the backend is not configured, so waiting for it is useless
	}
	if err := s.m.probeBackend(b); v1.CodeOf(err) == v1.CodeBackendMissing {
		return err
	}
	return nil
}

// postponeEnd marks the session as ending until its backend answers. It returns false if the session has ended
// meanwhile.
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
	_ = s.save(context.WithoutCancel(ctx)) // save logs the error, and the reaper retries
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
	_, _ = s.finish(s.m.ctx, v1.StateEnded, reason, func() bool { return true }) // finish logs the error
}

// finish moves a session to a final state if may, which is called with s.mu held, returns true. The sandbox and the
// images of the session are removed in the background. Its key is free once the store is written.
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
	// This begins before the manager forgets the session, because Close waits for sessions and background work. A
	// manager that is leaving does not begin it, and the next manager finds a stray.
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
	s.network.flush()
	failpoint("end.stopped")
	ctx, cancel := s.m.cleanupContext() // a new timeout, however long the steps above took
	defer cancel()
	if err != nil {
		s.m.log.WarnContext(ctx, "sandbox of an ended session could not be ended; the next collection retries",
			"session", s.key.String(), "sandbox", id, "error", err)
		return
	}
	s.mu.Lock()
	s.rec.Sandbox, s.rec.Hibernation = "", nil
	s.mu.Unlock()
	_ = s.save(ctx) // save logs the error, and recovery does not need this record
	if image != nil {
		s.m.dropImage(ctx, image)
	}
	if err := s.m.store.DropTokens(ctx, s.id); err != nil {
		s.m.log.WarnContext(ctx, "tokens of an ended session could not be removed",
			"session", s.key.String(), "error", err)
	}
}

// cleanupContext returns a ctx for clean-up that also works while the manager is closing.
func (m *Manager) cleanupContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(m.ctx), stopWait)
}

// attachEnded attaches the detached sandbox of an ended session, so that what runs in it gets SIGTERM. It returns nil
// if that fails.
func (s *Session) attachEnded(b sandbox.Backend, id string) *sandbox.Sandbox {
	ctx, cancel := context.WithTimeout(s.m.ctx, heldWait+s.m.opts.endGrace)
	defer cancel()
	sb, err := s.attachSandbox(ctx, b, id)
	if err != nil {
		return nil // the sandbox is gone, or does not answer and is killed
	}
	return sb
}

// terminate sends SIGTERM to everything that runs in the sandbox, and waits at most EndGrace until all of it has ended.
// A manager that is closing does not wait.
func (s *Session) terminate(sb *sandbox.Sandbox) {
	ctx, cancel := context.WithTimeout(s.m.ctx, s.m.opts.endGrace)
	defer cancel()
	ops, err := sb.Operations(ctx)
	if err != nil {
		return // the sandbox is gone, or does not answer and is killed
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
				// The result is ignored: only the end of the operation matters.
				_, _ = sb.Follow(grace, t.op, sandbox.FollowOptions{StdoutOffset: farEnd, StderrOffset: farEnd})
			}
			awaitGone(grace, sb, t.pids)
		})
	}
	wg.Wait()
}

// tree is a process tree that gets signals through one operation: a command and its children, or an interpreter and
// what its cells started.
type tree struct {
	op      string
	running bool
	pids    []int // known processes beside the operation's own
}

// trees returns each process tree that can still be signalled exactly once, because many programs exit at once on a
// second SIGTERM. It includes ended commands with survivors, and an interpreter as long as the guest remembers one of
// its cells.
func trees(ops []sandbox.Operation, contexts []sandbox.Context) []tree {
	var out []tree
	of := map[string]*tree{} // by context
	for _, c := range contexts {
		of[c.Name] = &tree{pids: []int{c.PID}}
	}
	for _, o := range ops {
		if o.Kind == v1.OperationProcess {
			continue // a survivor: the operation that left it is in the list, too
		}
		t := of[o.Context]
		if o.Kind != "cell" {
			t = &tree{}
		}
		if t == nil {
			continue // the interpreter has ended, with everything it started
		}
		if o.Kind == "cell" && o.PID == 0 {
			continue // the cell never had an interpreter, and cannot be signalled
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
				break // the process has ended, the grace is over, or the sandbox is gone
			}
			select {
			case <-time.After(goneEvery):
			case <-ctx.Done():
				return
			}
		}
	}
}
