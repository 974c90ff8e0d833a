package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"iter"
	"log/slog"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/store"
)

const (
	// flushEvery is the time between two batches.
	flushEvery = 250 * time.Millisecond
	// defaultRoom is how many lines may wait for the store. AddEntry then waits for it; if it cannot be written, no code
	// may run.
	defaultRoom = 20000
	// batch is how many waiting lines are written without waiting for the next tick.
	batch = 2000
	// detailBytes is how much of an entry's detail is kept; the digest identifies the whole of it.
	detailBytes = 256
	// page is how many entries are read at once.
	page = 500
)

// Options makes a Journal.
type Options struct {
	Store  store.Log
	Dir    string // holds the spool
	Logger *slog.Logger
	// Room is how many lines may wait; 0: 20,000.
	Room int
	// Written, if not nil, is called when a batch is in the store, before the spool is emptied. Tests crash there.
	Written func()
}

// Journal writes events and audit entries to a store. Its methods may be called concurrently.
type Journal struct {
	opts  Options
	ready chan struct{} // has a value when a batch is full

	flushMu sync.Mutex // held while a batch is written; taken before mu

	// mu guards the fields below.
	mu      sync.Mutex
	events  []store.Event
	entries []store.Entry
	writing int // how many lines are in the batch that is being written
	spool   *spool
	failed  error // why the last batch could not be written
}

// Open opens the spool, and writes the entries to the store that an earlier program left there.
func Open(ctx context.Context, o Options) (*Journal, error) {
	if o.Room == 0 {
		o.Room = defaultRoom
	}
	j := &Journal{opts: o, ready: make(chan struct{}, 1)}
	mark, err := o.Store.Marked(ctx)
	if err != nil {
		return nil, err
	}
	sp, left, err := openSpool(o.Dir, mark)
	if err != nil {
		e := &v1.Error{Code: v1.CodeInternal, Op: "open audit log", Message: "the spool files cannot be opened", Err: err}
		if errors.Is(err, syscall.ENOSPC) {
			e.Code, e.Remedy = v1.CodeDiskFull, "free some space"
		}
		return nil, e
	}
	b := store.Batch{Mark: sp.last}
	for _, l := range left {
		b.Entries = append(b.Entries, l.Entry)
	}
	if err = o.Store.Append(ctx, b); err == nil {
		err = errors.Join(sp.empty(0), sp.empty(1))
	}
	if err != nil {
		return nil, errors.Join(err, sp.close())
	}
	if len(left) > 0 {
		o.Logger.InfoContext(ctx, "audit entries of an earlier server recovered", "entries", len(left))
	}
	j.spool = sp
	return j, nil
}

// Run writes batches until ctx ends. What is left then is written by Close.
func (j *Journal) Run(ctx context.Context) {
	t := time.NewTicker(flushEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-j.ready:
		}
		_ = j.Flush(context.WithoutCancel(ctx)) // it is logged, and the lines wait
	}
}

// Close writes what is left and closes the spool.
func (j *Journal) Close(ctx context.Context) error {
	err := j.Flush(ctx)
	j.mu.Lock()
	defer j.mu.Unlock()
	return errors.Join(err, j.spool.close())
}

// AddEvent adds an event. It never waits for the store: an event that there is no room for is dropped.
func (j *Journal) AddEvent(e store.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.events) < j.opts.Room {
		j.events = append(j.events, e)
	}
	j.signalBatch()
}

// AddEntry adds an entry to the audit log, and waits for the store when there is no room. The time defaults to now; the
// detail is shortened, and its digest added.
func (j *Journal) AddEntry(e store.Entry) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	if e.Detail != "" && e.Digest == "" {
		sum := sha256.Sum256([]byte(e.Detail))
		e.Digest = hex.EncodeToString(sum[:16])
	}
	e.Detail = shorten(e.Detail)
	j.mu.Lock()
	j.entries = append(j.entries, e)
	j.spool.add(e)
	full := j.signalBatch() >= j.opts.Room
	j.mu.Unlock()
	if full {
		_ = j.Flush(context.Background()) // it is logged, and the lines wait
	}
}

// shorten cuts a text to detailBytes without cutting a character.
func shorten(s string) string {
	if len(s) <= detailBytes {
		return s
	}
	n := detailBytes
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// signalBatch wakes Run if enough lines wait, and returns how many do.
//
// Preconditions: j.mu is held.
func (j *Journal) signalBatch() int {
	n := j.waiting()
	if n >= min(batch, j.opts.Room) {
		select {
		case j.ready <- struct{}{}:
		default:
		}
	}
	return n
}

// waiting returns how many lines are not in the store yet. Those of the batch that is being written count: while a write that
// will fail goes on, they still need their room.
//
// Preconditions: j.mu is held.
func (j *Journal) waiting() int { return len(j.events) + len(j.entries) + j.writing }

// Blocked returns why no code may run now, or nil: the store cannot be written, and there is no room for more lines.
func (j *Journal) Blocked() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed == nil || j.waiting() < j.opts.Room {
		return nil
	}
	return &v1.Error{
		Code: v1.CodeOf(j.failed), Op: "use session", Message: "the audit log cannot be written, and too many of its lines wait already",
		Remedy: "free some space, or see the server's log", Err: j.failed,
	}
}

// Flush writes the lines that wait.
func (j *Journal) Flush(ctx context.Context) error {
	j.flushMu.Lock()
	defer j.flushMu.Unlock()
	j.mu.Lock()
	b := store.Batch{Events: j.events, Entries: j.entries}
	if len(b.Events)+len(b.Entries) == 0 {
		j.mu.Unlock()
		return nil
	}
	j.events, j.entries, j.writing = nil, nil, len(b.Events)+len(b.Entries)
	b.Mark = j.spool.seal()
	j.mu.Unlock()
	err := j.opts.Store.Append(ctx, b)
	if j.opts.Written != nil {
		j.opts.Written()
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.writing = 0
	if err != nil {
		j.putBack(ctx, b, err)
		return err
	}
	if j.failed != nil {
		j.opts.Logger.InfoContext(ctx, "audit log and events can be written again")
		j.failed = nil
	}
	if err := j.spool.drop(); err != nil {
		j.opts.Logger.WarnContext(ctx, "spool of the audit log could not be emptied", "error", err)
	}
	return nil
}

// putBack keeps lines that could not be written for the next attempt. There is room for twice as many entries as code may
// fill, because other actions are recorded as well; beyond that the newest are dropped.
//
// Preconditions: j.mu is held.
func (j *Journal) putBack(ctx context.Context, b store.Batch, err error) {
	if j.failed == nil {
		j.opts.Logger.ErrorContext(ctx, "audit log and events cannot be written; they wait", "lines", len(b.Events)+len(b.Entries), "error", err)
	}
	j.failed = err
	j.events, j.entries = append(b.Events, j.events...), append(b.Entries, j.entries...)
	if len(j.events) > j.opts.Room {
		j.events = j.events[:j.opts.Room]
	}
	if over := len(j.entries) - 2*j.opts.Room; over > 0 {
		j.opts.Logger.ErrorContext(ctx, "audit entries are lost", "entries", over)
		j.entries = j.entries[:2*j.opts.Room]
	}
}

// Pause keeps batches from being written until resume is called.
func (j *Journal) Pause() (resume func()) {
	j.flushMu.Lock()
	return j.flushMu.Unlock
}

// Entries iterates over entries of the audit log, oldest first, those that waited until now included.
func (j *Journal) Entries(ctx context.Context, q store.EntryQuery) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		if err := j.Flush(ctx); err != nil {
			yield(store.Entry{}, err)
			return
		}
		limit, read := q.Limit, 0
		for {
			q.Limit = page
			if limit > 0 {
				q.Limit = min(page, limit-read)
			}
			rows, err := j.opts.Store.Entries(ctx, q)
			if err != nil {
				yield(store.Entry{}, err)
				return
			}
			for _, e := range rows {
				q.After, q.Last = e.ID, 0 // a later page begins behind it
				if !yield(e, nil) {
					return
				}
			}
			read += len(rows)
			if len(rows) < q.Limit || read == limit {
				return
			}
		}
	}
}
