// Package trajectory keeps the ordered events of a run: written as they happen, one line of JSON each, in a file that a killed
// program leaves whole but for its last line.
//
// Whoever watches a run reads the same file, at its own pace, and is woken when a line is added. So a slow watcher loses nothing and holds up
// nobody, and the memory of a run does not grow with its events.
package trajectory

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// FileName is the log's name in a run's directory.
const FileName = "events.jsonl"

// Log is the event log of one run. Its methods may be called from several goroutines.
type Log struct {
	path string

	mu   sync.Mutex
	file *os.File      // guarded by mu; nil once closed
	seq  int64         // guarded by mu
	more chan struct{} // guarded by mu; closed and replaced when an event is added
	over bool          // guarded by mu
	err  error         // guarded by mu; the first failure to write
}

// Create begins the log of a new run in dir.
func Create(dir string) (*Log, error) {
	path := filepath.Join(dir, FileName)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("begin the event log: %w", err)
	}
	return &Log{path: path, file: f, more: make(chan struct{})}, nil
}

// Continue opens the log of a run that was interrupted. Half a last line is taken away.
func Continue(dir string) (*Log, error) {
	path := filepath.Join(dir, FileName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return nil, fmt.Errorf("continue the event log: %w", err)
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
		return nil, fmt.Errorf("continue the event log: %w", err)
	}
	return &Log{path: path, file: f, seq: seq, more: make(chan struct{})}, nil
}

// Append writes an event; its number and time are set here.
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
	// One write: whoever reads, and whoever comes after a crash, sees a line or none of it.
	if _, err := l.file.Write(append(line, '\n')); err != nil {
		if l.err == nil {
			l.err = fmt.Errorf("write event: %w", err)
		}
		return l.err
	}
	l.seq++
	close(l.more)
	l.more = make(chan struct{})
	return nil
}

// Err is the first failure to write, if there was one.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Close ends the log; those who follow it come to their end.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return nil
	}
	l.over = true
	close(l.more)
	err := l.file.Close()
	l.file = nil
	return err
}

// Follow gives the events after number from, those to come included, until the log is closed or ctx ends.
func (l *Log) Follow(ctx context.Context, from int64) iter.Seq2[v1.RunEvent, error] {
	return func(yield func(v1.RunEvent, error) bool) {
		f, err := os.Open(l.path)
		if err != nil {
			yield(v1.RunEvent{}, fmt.Errorf("follow events: %w", err))
			return
		}
		defer f.Close()
		s := newScanner(f)
		for {
			l.mu.Lock()
			more, over := l.more, l.over
			l.mu.Unlock()
			if !s.each(func(e v1.RunEvent, err error) bool { return err == nil && e.Seq <= from || yield(e, err) }) {
				return
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

// Read gives the events of a run's directory up to now. Half a last line is passed over.
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

// scanner reads whole lines from a file that may grow.
type scanner struct {
	r    *bufio.Reader
	half []byte // a line whose end has not come
}

func newScanner(r io.Reader) *scanner { return newScannerSize(r, 64<<10) }

func newScannerSize(r io.Reader, size int) *scanner { return &scanner{r: bufio.NewReaderSize(r, size)} }

// each yields the events up to the end of the last whole line, or an error, and reports whether more may be read later.
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

// next gives an event and the bytes of its line, or io.EOF while no whole line is there.
func (s *scanner) next() (v1.RunEvent, int, error) {
	line, err := s.r.ReadBytes('\n')
	s.half = append(s.half, line...)
	if err != nil {
		if errors.Is(err, io.EOF) {
			return v1.RunEvent{}, 0, io.EOF
		}
		return v1.RunEvent{}, 0, fmt.Errorf("read events: %w", err)
	}
	whole := s.half
	s.half = nil
	var e v1.RunEvent
	if err := json.Unmarshal(bytes.TrimSpace(whole), &e); err != nil {
		return v1.RunEvent{}, 0, fmt.Errorf("read events: a line that is no event: %w", err)
	}
	return e, len(whole), nil
}
