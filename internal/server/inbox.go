package server

import (
	"io"
	"sync"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// maxInput is how many bytes of input are buffered for an operation that does not read them. Until the buffer is full,
// the server still reads the messages after the input, such as cancel or a new size of the terminal.
const maxInput = 4 << 20

// inbox buffers input between the caller that sends it and the operation that reads it.
type inbox struct {
	mu       sync.Mutex
	readable *sync.Cond    // uses mu; readers wait for data or an end
	data     []byte        // guarded by mu
	ended    bool          // guarded by mu; the input has ended
	detached bool          // guarded by mu; this caller sends no more, but the input has not ended
	dropped  bool          // guarded by mu; the operation reads no more
	space    chan struct{} // guarded by mu; closed when there is space again
}

func newInbox() *inbox {
	b := &inbox{space: make(chan struct{})}
	b.readable = sync.NewCond(&b.mu)
	return b
}

// put buffers data and returns nil. If the buffer is full, it returns a channel that is closed when the caller should
// try again. An empty inbox accepts data of any length.
func (b *inbox) put(data []byte) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dropped || b.ended || b.detached {
		return nil
	}
	if len(b.data) > 0 && len(b.data)+len(data) > maxInput {
		return b.space
	}
	b.data = append(b.data, data...)
	b.readable.Broadcast()
	return nil
}

// Read implements io.Reader. It returns v1.ErrInputLeft if the caller has disconnected and the input stays open.
func (b *inbox) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.data) == 0 && !b.ended && !b.dropped && !b.detached {
		b.readable.Wait()
	}
	if len(b.data) == 0 && b.detached && !b.ended && !b.dropped {
		return 0, v1.ErrInputLeft
	}
	if len(b.data) == 0 || b.dropped {
		return 0, io.EOF
	}
	n := copy(p, b.data)
	if b.data = b.data[n:]; len(b.data) == 0 {
		b.data = nil // otherwise the array would stay and grow
	}
	b.wakeWriters()
	return n, nil
}

// end ends the input.
func (b *inbox) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	b.readable.Broadcast()
	b.wakeWriters()
}

// detach marks that this caller sends no more. The input does not end.
func (b *inbox) detach() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.detached = true
	b.readable.Broadcast()
	b.wakeWriters()
}

// drop marks that the operation reads no more, and discards the buffer.
func (b *inbox) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dropped, b.data = true, nil
	b.readable.Broadcast()
	b.wakeWriters()
}

// wakeWriters wakes the callers that wait for space.
//
// Preconditions: b.mu is held.
func (b *inbox) wakeWriters() {
	close(b.space)
	b.space = make(chan struct{})
}
