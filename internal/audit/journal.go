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
	// defaultCapacity is the default of Options.Capacity.
	defaultCapacity = 20000
	// batch is the number of waiting lines at which Run writes them before the next tick.
	batch = 2000
	// detailBytes is how many bytes of an entry's detail are stored. The digest identifies the complete detail.
	detailBytes = 256
	// page is how many entries are read at once.
	page = 500
)

// Options configures a Journal.
type Options struct {
	Store  store.Log
	Dir    string // directory of the spool
	Logger *slog.Logger
	// Capacity is the number of lines that may wait for the store; 0: 20,000. When it is reached, AddEntry waits for
	// the store. If the store cannot be written, no code may run.
	Capacity int
	// Written, if not nil, is called when a batch is in the store, before the spool is emptied. Tests kill the program
	// there.
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
	writing int // number of lines in the batch that is being written
	spool   *spool
	failed  error // error of the last batch; nil: it was written
}

// Open opens the spool, and writes entries that an earlier program left there to the store.
func Open(ctx context.Context, o Options) (*Journal, error) {
	if o.Capacity == 0 {
		o.Capacity = defaultCapacity
	}
	j := &Journal{opts: o, ready: make(chan struct{}, 1)}
	mark, err := o.Store.Marked(ctx)
	if err != nil {
		return nil, err
	}
	sp, left, err := openSpool(o.Dir, mark)
	if err != nil {
		e := &v1.Error{
			Code:    v1.CodeInternal,
			Op:      "open audit log",
			Message: "the spool files cannot be opened",
			Err:     err,
		}
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

// Run writes batches until ctx ends. Close writes the rest.
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
		_ = j.Flush(context.WithoutCancel(ctx)) // Flush logs the error, and the lines wait
	}
}

// Close writes the lines that wait, and closes the spool.
func (j *Journal) Close(ctx context.Context) error {
	err := j.Flush(ctx)
	j.mu.Lock()
	defer j.mu.Unlock()
	return errors.Join(err, j.spool.close())
}

// AddEvent adds an event. It never waits for the store: if the journal is full, the event is dropped.
func (j *Journal) AddEvent(e store.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.events) < j.opts.Capacity {
		j.events = append(j.events, e)
	}
	j.signalBatch()
}

// AddEntry adds an entry to the audit log. If the journal is full, it waits for the store. The time defaults to now.
// The detail is shortened, and its digest is added.
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
	full := j.signalBatch() >= j.opts.Capacity
	j.mu.Unlock()
	if full {
		_ = j.Flush(context.Background()) // Flush logs the error, and the lines wait
	}
}

// shorten cuts a text to at most detailBytes, at the end of a character.
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

// signalBatch wakes Run if enough lines wait. It returns the number of lines that wait.
//
// Preconditions: j.mu is held.
func (j *Journal) signalBatch() int {
	n := j.waiting()
	if n >= min(batch, j.opts.Capacity) {
		select {
		case j.ready <- struct{}{}:
		default:
		}
	}
	return n
}

// waiting returns the number of lines that are not in the store yet. The lines of the batch that is being written
// count, because they stay in memory if the write fails.
//
// Preconditions: j.mu is held.
func (j *Journal) waiting() int { return len(j.events) + len(j.entries) + j.writing }

// Blocked returns an error if no code may run, because the store cannot be written and the journal is full.
func (j *Journal) Blocked() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed == nil || j.waiting() < j.opts.Capacity {
		return nil
	}
	return &v1.Error{
		Code:    v1.CodeOf(j.failed),
		Op:      "use session",
		Message: "the audit log cannot be written, and too many entries wait",
		Remedy:  "free some space, or look for the cause in the server's log",
		Err:     j.failed,
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

// putBack returns lines that could not be written to the queue. Code may run until Capacity is reached. Other actions
// are recorded, too, so the queue takes twice as many entries; beyond that, the newest are dropped.
//
// Preconditions: j.mu is held.
func (j *Journal) putBack(ctx context.Context, b store.Batch, err error) {
	if j.failed == nil {
		j.opts.Logger.ErrorContext(ctx, "audit log and events cannot be written; they wait in memory",
			"lines", len(b.Events)+len(b.Entries), "error", err)
	}
	j.failed = err
	j.events, j.entries = append(b.Events, j.events...), append(b.Entries, j.entries...)
	if len(j.events) > j.opts.Capacity {
		j.events = j.events[:j.opts.Capacity]
	}
	if over := len(j.entries) - 2*j.opts.Capacity; over > 0 {
		j.opts.Logger.ErrorContext(ctx, "audit entries are lost", "entries", over)
		j.entries = j.entries[:2*j.opts.Capacity]
	}
}

// Pause prevents batches from being written until resume is called.
func (j *Journal) Pause() (resume func()) {
	j.flushMu.Lock()
	return j.flushMu.Unlock
}

// Entries iterates over entries of the audit log, the oldest first. It writes the waiting lines first, so that they are
// included.
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
				q.After, q.Last = e.ID, 0 // the next page starts after this entry
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
