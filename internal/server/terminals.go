package server

import (
	"sync"
	"time"
)

// terminals holds the operations with a terminal that this server started. If the connection of a terminal breaks, its
// operation continues for grace, so that the caller can attach to it again. Then the operation is cancelled. Operations
// of an earlier server are not in the list. They continue, like every operation whose server has ended.
type terminals struct {
	grace time.Duration // negative: a terminal ends with its connection

	mu  sync.Mutex
	all map[terminalKey]*terminal // guarded by mu
}

type terminalKey struct{ session, operation string } // ids

// terminal is an operation with a terminal. Its fields are guarded by terminals.mu.
type terminal struct {
	attached int         // number of connections
	cancel   func()      // cancels the operation
	timer    *time.Timer // calls cancel; nil while a connection is attached
}

func newTerminals(grace time.Duration) *terminals {
	return &terminals{grace: grace, all: map[terminalKey]*terminal{}}
}

// add adds an operation with one connection. It returns false if the operation is already in the list. Call remove when
// the operation has ended.
func (ts *terminals) add(k terminalKey, cancel func()) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.all[k] != nil {
		return false
	}
	ts.all[k] = &terminal{attached: 1, cancel: cancel}
	return true
}

// attach adds a connection. Call detach when the connection has ended.
func (ts *terminals) attach(k terminalKey) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.all[k]
	if t == nil {
		return
	}
	t.attached++
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
}

// detach removes a connection. If it was the last one, the operation is cancelled: at once if the connection was closed
// normally, otherwise after the grace.
func (ts *terminals) detach(k terminalKey, closedNormally bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.all[k]
	if t == nil {
		return
	}
	if t.attached--; t.attached > 0 {
		return
	}
	if closedNormally || ts.grace <= 0 {
		t.cancel()
		return
	}
	t.timer = time.AfterFunc(ts.grace, func() {
		ts.mu.Lock()
		defer ts.mu.Unlock()
		if ts.all[k] == t && t.attached == 0 {
			t.cancel()
		}
	})
}

// remove removes an ended operation.
func (ts *terminals) remove(k terminalKey) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t := ts.all[k]; t != nil && t.timer != nil {
		t.timer.Stop()
	}
	delete(ts.all, k)
}
