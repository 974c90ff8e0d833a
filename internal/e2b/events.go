package e2b

import (
	"sync"
	"sync/atomic"

	"github.com/recluse-dev/recluse/internal/e2b/wire"
)

// A sandbox keeps little of the output that its caller has not read. maxQueued is how much more waits here for a
// caller, so that one with a slow link may leave some MiB on their way. maxAllQueued is the maximum for all callers
// together.
const (
	maxQueued    = 8 << 20
	maxAllQueued = 256 << 20
)

// events sends the events of a process, one after the other. They wait in a queue.
type events struct {
	send func(*wire.ProcessEvent) error
	pty  bool
	all  *atomic.Int64 // bytes in all queues
	done sync.WaitGroup

	mu      sync.Mutex
	changed sync.Cond // of everything below
	queue   []event   // guarded by mu
	size    int       // guarded by mu; bytes in the queue, and of the event that is being sent
	sending bool      // guarded by mu
	closed  bool      // guarded by mu
	err     error     // guarded by mu; of a send
}

type event struct {
	*wire.ProcessEvent
	size int
}

// newEvents returns a queue. The caller closes it.
func newEvents(send func(*wire.ProcessEvent) error, all *atomic.Int64) *events {
	e := &events{send: send, all: all}
	e.changed.L = &e.mu
	e.done.Go(e.run)
	return e
}

func (e *events) run() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		for len(e.queue) == 0 && !e.closed {
			e.changed.Wait()
		}
		if e.closed || e.err != nil {
			return
		}
		next := e.queue[0]
		e.queue, e.sending = e.queue[1:], true
		e.mu.Unlock()
		err := e.send(next.ProcessEvent)
		e.mu.Lock()
		e.sending, e.err = false, err
		e.drop(next.size)
		e.changed.Broadcast()
	}
}

// drop counts bytes that are no longer in the queue.
//
// Preconditions: mu is held.
func (e *events) drop(n int) {
	e.size -= n
	e.all.Add(-int64(n))
}

// add adds an event with a number of bytes, and waits while there is no room for it.
func (e *events) add(ev *wire.ProcessEvent, size int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.err == nil && e.size > 0 && size > 0 &&
		(e.size+size > maxQueued || e.all.Load()+int64(size) > maxAllQueued) {
		e.changed.Wait()
	}
	if e.err != nil {
		return e.err
	}
	e.queue = append(e.queue, event{ev, size})
	e.size += size
	e.all.Add(int64(size))
	e.changed.Broadcast()
	return nil
}

// flush waits until everything was sent.
func (e *events) flush() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.err == nil && (len(e.queue) > 0 || e.sending) {
		e.changed.Wait()
	}
	return e.err
}

// close drops what was not sent, and waits for the last send.
func (e *events) close() {
	e.mu.Lock()
	e.closed = true
	e.changed.Broadcast()
	e.mu.Unlock()
	e.done.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.drop(e.size)
	e.queue = nil
}
