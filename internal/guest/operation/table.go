//go:build linux

package operation

import (
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/recluse-dev/recluse/internal/guest/wire"
)

const (
	// keepFinished is the number of ended operations that are kept.
	keepFinished = 64
	// keepSurvivors is the number of older ones that are kept because they have survivors, which could not be signalled
	// without them. There are not more processes than this unless the limits were raised.
	keepSurvivors = 256
)

// validName matches the names of operations and contexts: they become part of a file name.
var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// ValidName reports whether s is a valid name of an operation or a context.
func ValidName(s string) bool { return validName.MatchString(s) }

// Request describes an operation to add.
type Request struct {
	ID       string
	Kind     string // "command" or "cell"
	Command  string // for display
	Context  string
	Inline   int64 // bytes of output kept in memory
	Spool    int64 // bytes of output kept in a file
	Detach   bool  // outlives its attachment
	PTY      bool  // has a terminal
	Epoch    uint64
	Metadata map[string]string
}

// Options returns r with the common options of cells and commands set.
func (r Request) Options(o *wire.RunOptions) Request {
	r.ID, r.Inline, r.Spool, r.Metadata = o.Id, o.InlineBytes, o.SpoolBytes, o.Metadata
	r.Detach = r.Detach || o.Detach
	return r
}

// Table holds the operations. Finished ones stay for a while, so that a host that was disconnected can still get their
// verdicts.
type Table struct {
	dir     string
	started chan struct{}

	mu    sync.Mutex
	ops   map[string]*Operation // guarded by mu
	order []*Operation          // guarded by mu; oldest first
}

// NewTable returns a table that spools output to files in dir.
func NewTable(dir string) *Table {
	return &Table{dir: dir, ops: map[string]*Operation{}, started: make(chan struct{}, 1)}
}

// Started returns a channel that receives when an operation has been added. Several additions may send one value.
func (t *Table) Started() <-chan struct{} { return t.started }

// Add adds an operation.
func (t *Table) Add(r Request) (*Operation, *wire.Error) {
	if !ValidName(r.ID) {
		return nil, wire.Errorf("invalid_request", "invalid operation id %q", r.ID)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ops[r.ID] != nil {
		return nil, wire.Errorf("operation_exists", "operation %s already exists", r.ID)
	}
	r.Command = wire.Clip(r.Command, 200)
	o := &Operation{Request: r, began: time.Now(), ended: make(chan struct{}), done: make(chan struct{})}
	o.Memory.Open()
	for i, name := range []string{"stdout", "stderr"} {
		o.out[i] = newSink(r.Inline, r.Spool, filepath.Join(t.dir, r.ID+"."+name))
	}
	for _, other := range t.order {
		if !other.Finished() {
			other.Memory.Share()
			o.Memory.Share()
		}
	}
	t.ops[r.ID] = o
	select {
	case t.started <- struct{}{}:
	default: // a value is waiting already
	}
	t.order = append(t.order, o)
	t.evict()
	return o, nil
}

// evict forgets the oldest finished operations.
//
// Preconditions: mu is held.
func (t *Table) evict() {
	finished, kept := 0, 0
	for i := len(t.order) - 1; i >= 0; i-- {
		o := t.order[i]
		if !o.Finished() {
			continue
		}
		if finished++; finished <= keepFinished {
			continue
		}
		if kept < keepSurvivors && o.hasSurvivors() {
			kept++
			continue
		}
		t.drop(o)
	}
}

// drop removes one operation and its spooled output.
//
// Preconditions: mu is held.
func (t *Table) drop(o *Operation) {
	delete(t.ops, o.ID)
	for i, x := range t.order {
		if x == o {
			t.order = append(t.order[:i:i], t.order[i+1:]...)
			break
		}
	}
	for _, s := range o.out {
		s.remove()
	}
}

// Get returns the operation with an id.
func (t *Table) Get(id string) (*Operation, *wire.Error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o := t.ops[id]; o != nil {
		return o, nil
	}
	return nil, wire.Errorf("not_found", "operation %q not found", wire.Clip(id, 80))
}

// Forget removes a finished operation and its spooled output.
func (t *Table) Forget(id string) *wire.Error {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.ops[id]
	if o == nil {
		return wire.Errorf("not_found", "operation %q not found", wire.Clip(id, 80))
	}
	if !o.Finished() {
		return wire.Errorf("busy", "operation %s is still running", id)
	}
	t.drop(o)
	return nil
}

// All returns the operations, oldest first.
func (t *Table) All() []*Operation {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]*Operation(nil), t.order...)
}

// Idle reports whether no operation is running.
func (t *Table) Idle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range t.order {
		if !o.Finished() {
			return false
		}
	}
	return true
}

// CancelAttached cancels the operations of an attachment that do not outlive it.
func (t *Table) CancelAttached(epoch uint64) {
	for _, o := range t.All() {
		if o.Epoch == epoch && !o.Detach && !o.Finished() {
			o.End(wire.Ending_ENDING_CANCELLED)
		}
	}
}
