// Package trajectory stores the events of a run in order. They are written as they happen, one line of JSON each. If
// the program is killed, only the last line of the file can be incomplete.
//
// A reader of a running run reads the same file at its own speed, and is woken when a line is added. Therefore a slow
// reader misses no events and does not delay the run, and the memory of a run does not grow with its events.
package trajectory

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// FileName is the name of the log in the directory of a run.
const FileName = "events.jsonl"

// Log is the event log of one run. It is safe for concurrent use.
type Log struct {
	path string

	mu      sync.Mutex
	file    *os.File      // guarded by mu; nil once closed
	seq     int64         // guarded by mu
	changed chan struct{} // guarded by mu; closed and replaced when an event is added
	closed  bool          // guarded by mu
	err     error         // guarded by mu; the first write error

	watchers int                  // guarded by mu; running iterators of Watch
	reports  int64                // guarded by mu; number of reports so far
	latest   map[string]transient // guarded by mu; the latest report of each node
}

// transient is an event that is not stored.
type transient struct {
	number int64
	event  v1.RunEvent
}

// Create creates the log of a new run in dir.
func Create(dir string) (*Log, error) {
	path := filepath.Join(dir, FileName)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create event log: %w", err)
	}
	return &Log{path: path, file: f, changed: make(chan struct{})}, nil
}

// Continue opens the log of an interrupted run. It removes an incomplete last line.
func Continue(dir string) (*Log, error) {
	path := filepath.Join(dir, FileName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return nil, fmt.Errorf("continue event log: %w", err)
	}
	var seq, whole int64
	s := newScanner(f)
	for {
		e, n, err := s.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			_ = f.Close()
			return nil, err
		}
		seq, whole = e.Seq, whole+int64(n)
	}
	if err := f.Truncate(whole); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("continue event log: %w", err)
	}
	return &Log{path: path, file: f, seq: seq, changed: make(chan struct{})}, nil
}

// Append writes an event. It sets the number and the time of the event.
func (l *Log) Append(e v1.RunEvent) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return os.ErrClosed
	}
	e.Seq, e.Time = l.seq+1, time.Now().UTC()
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("write event: %w", err)
	}
	// One write for the whole line, so that readers, also after a crash, see all of the line or none of it.
	if _, err := l.file.Write(append(line, '\n')); err != nil {
		if l.err == nil {
			l.err = fmt.Errorf("write event: %w", err)
		}
		return l.err
	}
	l.seq++
	delete(l.latest, e.Node) // it is about the state before the event
	l.wake()
	return nil
}

// wake wakes the readers of the log.
//
// Preconditions: l.mu is held.
func (l *Log) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// Watched reports whether an iterator of Watch runs.
func (l *Log) Watched() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.watchers > 0
}

// Report sends an event to the watchers without storing it. It replaces an earlier report of the same node that a
// watcher has not received yet.
func (l *Log) Report(e v1.RunEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.watchers == 0 {
		return
	}
	if l.latest == nil {
		l.latest = map[string]transient{}
	}
	e.Seq, e.Time = 0, time.Now().UTC()
	l.reports++
	l.latest[e.Node] = transient{l.reports, e}
	l.wake()
}

// reportsAfter returns the latest reports of the nodes with higher numbers than after, in order.
//
// Preconditions: l.mu is held.
func (l *Log) reportsAfter(after int64) []transient {
	var out []transient
	for _, t := range l.latest {
		if t.number > after {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b transient) int { return cmp.Compare(a.number, b.number) })
	return out
}

// Err returns the first write error, or nil.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Close closes the log. The iterators of Follow end after its last event.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	close(l.changed)
	err := l.file.Close()
	l.file = nil
	return err
}

// Follow yields the events with numbers greater than from. It waits for new events until the log is closed or ctx ends.
func (l *Log) Follow(ctx context.Context, from int64) iter.Seq2[v1.RunEvent, error] {
	return l.follow(ctx, from, false)
}

// Watch is Follow with the events of Report among the stored ones. These have the number 0.
func (l *Log) Watch(ctx context.Context, from int64) iter.Seq2[v1.RunEvent, error] {
	return func(yield func(v1.RunEvent, error) bool) {
		l.watch(1)
		defer l.watch(-1)
		l.follow(ctx, from, true)(yield)
	}
}

// watch adds n to the number of watchers. Without watchers there are no reports.
func (l *Log) watch(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watchers += n; l.watchers == 0 {
		l.latest = nil
	}
}

func (l *Log) follow(ctx context.Context, from int64, watch bool) iter.Seq2[v1.RunEvent, error] {
	return func(yield func(v1.RunEvent, error) bool) {
		f, err := os.Open(l.path)
		if err != nil {
			yield(v1.RunEvent{}, fmt.Errorf("follow events: %w", err))
			return
		}
		defer f.Close()
		s := newScanner(f)
		var seen int64
		for {
			l.mu.Lock()
			more, over := l.changed, l.closed
			var reports []transient
			if watch {
				reports = l.reportsAfter(seen)
			}
			l.mu.Unlock()
			if !s.each(func(e v1.RunEvent, err error) bool { return err == nil && e.Seq <= from || yield(e, err) }) {
				return
			}
			for _, t := range reports {
				if seen = t.number; !yield(t.event, nil) {
					return
				}
			}
			if over {
				return
			}
			select {
			case <-more:
			case <-ctx.Done():
				yield(v1.RunEvent{}, ctx.Err())
				return
			}
		}
	}
}

// Read yields the events in a run's directory so far. It ignores an incomplete last line.
func Read(dir string) iter.Seq2[v1.RunEvent, error] {
	return func(yield func(v1.RunEvent, error) bool) {
		f, err := os.Open(filepath.Join(dir, FileName))
		if err != nil {
			yield(v1.RunEvent{}, fmt.Errorf("read events: %w", err))
			return
		}
		defer f.Close()
		newScanner(f).each(yield)
	}
}

// scanner reads complete lines from a file that may grow.
type scanner struct {
	r       *bufio.Reader
	partial []byte // the beginning of an incomplete line
}

func newScanner(r io.Reader) *scanner { return newScannerSize(r, 64<<10) }

func newScannerSize(r io.Reader, size int) *scanner { return &scanner{r: bufio.NewReaderSize(r, size)} }

// each yields the events up to the last complete line, or an error. It returns true if more may be read later.
func (s *scanner) each(yield func(v1.RunEvent, error) bool) bool {
	for {
		e, _, err := s.next()
		if errors.Is(err, io.EOF) {
			return true
		}
		if !yield(e, err) || err != nil {
			return false
		}
	}
}

// next returns an event and the size of its line in bytes, or io.EOF if there is no complete line yet.
func (s *scanner) next() (v1.RunEvent, int, error) {
	line, err := s.r.ReadBytes('\n')
	s.partial = append(s.partial, line...)
	if err != nil {
		if errors.Is(err, io.EOF) {
			return v1.RunEvent{}, 0, io.EOF
		}
		return v1.RunEvent{}, 0, fmt.Errorf("read events: %w", err)
	}
	whole := s.partial
	s.partial = nil
	var e v1.RunEvent
	if err := json.Unmarshal(bytes.TrimSpace(whole), &e); err != nil {
		return v1.RunEvent{}, 0, fmt.Errorf("read events: invalid line: %w", err)
	}
	return e, len(whole), nil
}
