package server

import (
	"sync"
	"time"
)

// terminals are the operations of this server that have a terminal. One whose connection breaks goes on for a while, so that its caller
// can attach to it again; then it is ended. An operation that an earlier server began is not among them: it goes on like every operation
// whose server went away.
type terminals struct {
	grace time.Duration // negative: none

	mu  sync.Mutex
	all map[terminalKey]*terminal // guarded by mu
}

type terminalKey struct{ session, operation string } // ids

// terminal is one of them. The mutex of terminals guards it.
type terminal struct {
	attached int         // connections
	end      func()      // cancels the operation
	expiry   *time.Timer // calls end; nil: somebody is attached
}

func newTerminals(grace time.Duration) *terminals {
	return &terminals{grace: grace, all: map[terminalKey]*terminal{}}
}

// begin adds an operation with one connection. Call forget when the operation has ended. It reports false for one that is there.
func (ts *terminals) begin(k terminalKey, end func()) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.all[k] != nil {
		return false
	}
	ts.all[k] = &terminal{attached: 1, end: end}
	return true
}

// attach adds a connection; leave removes it.
func (ts *terminals) attach(k terminalKey) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.all[k]
	if t == nil {
		return
	}
	t.attached++
	if t.expiry != nil {
		t.expiry.Stop()
		t.expiry = nil
	}
}

// leave removes a connection. Without any the operation is ended, at once if the connection was closed on purpose.
func (ts *terminals) leave(k terminalKey, onPurpose bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.all[k]
	if t == nil {
		return
	}
	if t.attached--; t.attached > 0 {
		return
	}
	if onPurpose || ts.grace <= 0 {
		t.end()
		return
	}
	t.expiry = time.AfterFunc(ts.grace, func() {
		ts.mu.Lock()
		defer ts.mu.Unlock()
		if ts.all[k] == t && t.attached == 0 {
			t.end()
		}
	})
}

// forget removes an operation.
func (ts *terminals) forget(k terminalKey) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t := ts.all[k]; t != nil && t.expiry != nil {
		t.expiry.Stop()
	}
	delete(ts.all, k)
}
