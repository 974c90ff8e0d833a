package session

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/sandbox"
)

const (
	// journalRoom is how many lines may wait to be written. Whoever adds one to the audit log then has to wait; if they cannot be written, no
	// code is run.
	journalRoom = 20000
	// journalBatch is how many waiting lines are written without waiting for the clock.
	journalBatch = 2000
)

// journal writes events and the audit log behind the callers' backs: a warm cell must not wait for the store. What waits is in memory, and
// lines of the audit log are in the spool too. Events that wait when the program is killed are lost, a quarter of a second at most.
type journal struct {
	m    *Manager
	room int
	poke chan struct{}

	flushMu sync.Mutex // held while a batch is written; taken before mu

	mu      sync.Mutex
	events  []store.Event // guarded by mu
	entries []store.Entry // guarded by mu
	spool   *spool        // guarded by mu
	failed  error         // guarded by mu; why the last batch could not be written
}

// open takes over what an earlier manager left in the spool.
func (j *journal) open(ctx context.Context, m *Manager) error {
	j.m, j.poke, j.room = m, make(chan struct{}, 1), first(m.opts.journalRoom, journalRoom)
	mark, err := m.store.Marked(ctx)
	if err != nil {
		return err
	}
	sp, left, err := openSpool(m.opts.DataDir, mark)
	if err != nil {
		e := &sandbox.Error{Code: sandbox.CodeInternal, Op: "open audit log", Message: "the files for lines that wait for the store cannot be opened", Err: err}
		if errors.Is(err, syscall.ENOSPC) {
			e.Code, e.Remedy = sandbox.CodeDiskFull, "free some space"
		}
		return e
	}
	b := store.Batch{Mark: sp.last}
	for _, l := range left {
		b.Entries = append(b.Entries, l.Entry)
	}
	if err = m.store.Append(ctx, b); err == nil {
		err = errors.Join(sp.empty(0), sp.empty(1))
	}
	if err != nil {
		return errors.Join(err, sp.close())
	}
	if len(left) > 0 {
		m.log.InfoContext(ctx, "lines that an earlier server left were added to the audit log", "lines", len(left))
	}
	j.spool = sp
	return nil
}

// close writes the rest.
func (j *journal) close(ctx context.Context) error {
	err := j.flush(ctx)
	j.mu.Lock()
	defer j.mu.Unlock()
	return errors.Join(err, j.spool.close())
}

// event takes an event. It never waits for the store, because its caller holds the session's mu: what there is no room for goes.
func (j *journal) event(e store.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.events) < j.room {
		j.events = append(j.events, e)
	}
	j.hurry()
}

// entry takes a line of the audit log. Its caller holds no lock, and waits for the store when there is no room.
func (j *journal) entry(e store.Entry) {
	j.mu.Lock()
	j.entries = append(j.entries, e)
	j.spool.add(e)
	full := j.hurry() >= j.room
	j.mu.Unlock()
	if full {
		_ = j.flush(context.WithoutCancel(j.m.ctx)) // told there
	}
}

// hurry has what waits written at once if it is much, and says how much it is.
//
// Preconditions: mu is held.
func (j *journal) hurry() int {
	n := len(j.events) + len(j.entries)
	if n >= min(journalBatch, j.room) {
		select {
		case j.poke <- struct{}{}:
		default:
		}
	}
	return n
}

// refusal says why no code may run now, or nil: what could not be written to the audit log waits, and there is no room for more.
func (j *journal) refusal() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed == nil || len(j.events)+len(j.entries) < j.room {
		return nil
	}
	return &sandbox.Error{
		Code: sandbox.CodeOf(j.failed), Op: "use session", Message: "the audit log cannot be written, and too much of it waits already", Remedy: "free some space, or see the server's log", Err: j.failed,
	}
}

// tend writes now and then.
func (j *journal) tend() {
	t := time.NewTicker(flushEvery)
	defer t.Stop()
	for {
		select {
		case <-j.m.ctx.Done():
			return // whoever closes the manager writes the rest
		case <-t.C:
		case <-j.poke:
		}
		_ = j.flush(context.WithoutCancel(j.m.ctx)) // told there
	}
}

// flush writes what waits.
func (j *journal) flush(ctx context.Context) error {
	j.flushMu.Lock()
	defer j.flushMu.Unlock()
	j.mu.Lock()
	b := store.Batch{Events: j.events, Entries: j.entries}
	if len(b.Events)+len(b.Entries) == 0 {
		j.mu.Unlock()
		return nil
	}
	j.events, j.entries = nil, nil
	b.Mark = j.spool.seal()
	j.mu.Unlock()
	err := j.m.store.Append(ctx, b)
	failpoint("audit.written")
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil {
		j.putBack(ctx, b, err)
		return err
	}
	if j.failed != nil {
		j.m.log.InfoContext(ctx, "audit log and events can be written again")
		j.failed = nil
	}
	if err := j.spool.drop(); err != nil {
		j.m.log.WarnContext(ctx, "lines that the store has are left beside it", "error", err)
	}
	return nil
}

// putBack keeps lines that could not be written for the next attempt. There is more room than code may fill, because whatever else happens is
// noted too; beyond that the newest go.
//
// Preconditions: mu is held.
func (j *journal) putBack(ctx context.Context, b store.Batch, err error) {
	if j.failed == nil {
		j.m.log.ErrorContext(ctx, "audit log and events cannot be written; they wait", "lines", len(b.Events)+len(b.Entries), "error", err)
	}
	j.failed = err
	j.events, j.entries = append(b.Events, j.events...), append(b.Entries, j.entries...)
	if len(j.events) > j.room {
		j.events = j.events[:j.room]
	}
	if over := len(j.entries) - 2*j.room; over > 0 {
		j.m.log.ErrorContext(ctx, "lines of the audit log are lost", "lines", over)
		j.entries = j.entries[:2*j.room]
	}
}
