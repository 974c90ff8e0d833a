package session

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// defaultContext is the interpreter of cells without a context.
const defaultContext = v1.DefaultContext

// queue runs the cells of one interpreter one after the other, in order.
type queue struct {
	slot  chan struct{} // holds one value while a cell runs
	users int           // cells that run or wait; the session's mu guards it
}

// enterQueue waits until a cell may run. The guest has a queue, too, but a cell leaves this one at once when its ctx is
// cancelled.
func (s *Session) enterQueue(ctx context.Context, name string) (leave func(), err error) {
	s.mu.Lock()
	if s.queues == nil {
		s.queues = map[string]*queue{}
	}
	q := s.queues[name]
	if q == nil {
		q = &queue{slot: make(chan struct{}, 1)}
		s.queues[name] = q
	}
	q.users++
	s.mu.Unlock()
	quit := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if q.users--; q.users == 0 {
			delete(s.queues, name)
		}
	}
	select {
	case q.slot <- struct{}{}:
		return func() { <-q.slot; quit() }, nil
	case <-ctx.Done():
		quit()
		return nil, cancelled("wait in the queue", ctx.Err())
	case <-s.m.ctx.Done():
		quit()
		return nil, errClosing
	}
}

// beginUse counts a new call. If renew is set, the call renews the idle timeout. If limited is set, the call is refused
// above the limits of commands and output.
func (s *Session) beginUse(renew, limited bool) error {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refusal(now); err != nil {
		return err
	}
	if limited {
		if err := s.m.journal.Blocked(); err != nil {
			return err
		}
		if n := s.rec.Policy.Commands; s.calls+len(s.background) >= n {
			return &v1.Error{
				Code:    v1.CodeQueueFull,
				Op:      "use session",
				Message: fmt.Sprintf("limit of %d running and waiting cells and commands reached", n),
				Remedy:  "wait for one to end, or cancel one",
				Retry:   true,
			}
		}
		if s.rec.Output >= s.rec.Policy.Output {
			return &v1.Error{
				Code:    v1.CodeSessionLimit,
				Op:      "use session",
				Message: fmt.Sprintf("limit of %s of output reached", v1.SizeText(s.rec.Policy.Output)),
				Remedy:  "open another session",
			}
		}
	}
	s.calls++
	if renew {
		s.rec.Used = now
		s.dirty = true
	}
	return nil
}

// endUse ends a call.
func (s *Session) endUse(renew bool, output int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls--
	s.rec.Output += output
	if renew {
		s.rec.Used = time.Now()
		s.dirty = true
	}
}

// enter begins a call, which lasts until done is called, and returns the sandbox. If renew is set, the call is use.
func (s *Session) enter(ctx context.Context, renew bool) (sb *sandbox.Sandbox, done func(), err error) {
	if err := s.awaitCreated(ctx); err != nil {
		return nil, nil, err
	}
	if err := s.beginUse(renew, false); err != nil {
		return nil, nil, err
	}
	if sb, err = s.awaitSandbox(ctx); err != nil {
		s.endUse(false, 0)
		return nil, nil, err
	}
	return sb, sync.OnceFunc(func() { s.endUse(renew, 0) }), nil
}
