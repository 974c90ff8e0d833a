//go:build linux

package operation

import (
	"context"
	"io"
	"os"
	"sync"

	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// Sink stores the output of one stream of an operation: the first and last bytes in memory, the beginning up to a limit
// in a file, and the total count. However much is written, memory stays bounded.
type Sink struct {
	half int   // bytes kept in memory of each end
	cap  int64 // bytes kept in the file
	path string

	mu       sync.Mutex
	changed  *sync.Cond // of mu; more output, or the end
	produced int64      // guarded by mu
	head     []byte     // guarded by mu
	tail     []byte     // guarded by mu; a ring once it is full
	tailAt   int        // guarded by mu; where the ring begins
	file     *os.File   // guarded by mu; created when memory no longer holds everything
	inFile   int64      // guarded by mu
	fileErr  bool       // guarded by mu; writing failed: the file gets no more data
	ended    bool       // guarded by mu
}

func newSink(inline, spool int64, path string) *Sink {
	s := &Sink{half: int(inline / 2), cap: spool, path: path}
	s.changed = sync.NewCond(&s.mu)
	return s
}

// write stores p and returns its absolute offset.
func (s *Sink) write(p []byte) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.produced
	if s.file == nil && !s.fileErr && s.cap > 0 && s.produced+int64(len(p)) > int64(2*s.half) {
		s.openFile()
	}
	s.spool(p)
	s.produced += int64(len(p))
	if room := s.half - len(s.head); room > 0 {
		n := min(room, len(p))
		s.head = append(s.head, p[:n]...)
		p = p[n:]
	}
	s.keepTail(p)
	s.changed.Broadcast()
	return at
}

// keepTail appends p to the ring.
//
// Preconditions: mu is held.
func (s *Sink) keepTail(p []byte) {
	if s.half == 0 || len(p) == 0 {
		return
	}
	if len(p) >= s.half {
		s.tail, s.tailAt = append(s.tail[:0], p[len(p)-s.half:]...), 0
		return
	}
	if room := s.half - len(s.tail); room > 0 {
		n := min(room, len(p))
		s.tail = append(s.tail, p[:n]...)
		p = p[n:]
	}
	for len(p) > 0 {
		n := copy(s.tail[s.tailAt:], p)
		s.tailAt = (s.tailAt + n) % len(s.tail)
		p = p[n:]
	}
}

// openFile creates the spool file with the content of memory, which is everything so far.
//
// Preconditions: mu is held.
func (s *Sink) openFile() {
	f, err := os.OpenFile(s.path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o644)
	if err != nil {
		s.fileErr = true
		return
	}
	s.file = f
	s.spool(s.head)
	s.spool(s.lastBytes())
}

// spool appends p to the file, up to the limit. A full disk ends the file, not the command.
//
// Preconditions: mu is held.
func (s *Sink) spool(p []byte) {
	if s.file == nil || s.fileErr {
		return
	}
	if room := s.cap - s.inFile; int64(len(p)) > room {
		p = p[:max(0, room)]
	}
	if len(p) == 0 {
		return
	}
	n, err := s.file.Write(p)
	s.inFile += int64(n)
	if err != nil {
		s.fileErr = true
	}
}

// lastBytes returns the content of the ring in order.
//
// Preconditions: mu is held.
func (s *Sink) lastBytes() []byte {
	return append(append(make([]byte, 0, len(s.tail)), s.tail[s.tailAt:]...), s.tail[:s.tailAt]...)
}

// End records that no more output follows.
func (s *Sink) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.changed.Broadcast()
}

// kept returns the output for a verdict.
func (s *Sink) kept() *wire.Kept {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &wire.Kept{Produced: s.produced, Head: append([]byte(nil), s.head...), Tail: s.lastBytes()}
	if s.file != nil {
		k.File, k.FileBytes = s.path, s.inFile
	}
	if s.produced == int64(len(k.Head)+len(k.Tail)) {
		k.Head, k.Tail = append(k.Head, k.Tail...), nil
	}
	return k
}

// Size returns the number of bytes produced so far.
func (s *Sink) Size() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.produced
}

// Read copies bytes from off on into p. Bytes that are no longer stored are skipped and counted. With wait it blocks
// until there are some; n == 0 then means the end of the output or of ctx. When ctx ends, Wake must be called.
func (s *Sink) Read(ctx context.Context, p []byte, off int64, wait bool) (n int, skipped int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for off >= s.produced && wait && !s.ended && ctx.Err() == nil {
		s.changed.Wait()
	}
	if off >= s.produced {
		return 0, 0
	}
	if off < int64(len(s.head)) {
		return copy(p, s.head[off:]), 0
	}
	if off < s.inFile {
		want := min(int64(len(p)), s.inFile-off)
		n, err := s.file.ReadAt(p[:want], off)
		if n > 0 && (err == nil || err == io.EOF) {
			return n, 0
		}
	}
	tail := s.lastBytes()
	first := s.produced - int64(len(tail))
	if off < first {
		skipped = first - off
		off = first
	}
	return copy(p, tail[off-first:]), skipped
}

// Wake makes waiting readers check their ctx.
func (s *Sink) Wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed.Broadcast()
}

// remove deletes the file.
func (s *Sink) remove() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		_ = s.file.Close() // no more writes follow
		_ = os.Remove(s.path)
		s.fileErr = true
		s.inFile = 0
	}
}
