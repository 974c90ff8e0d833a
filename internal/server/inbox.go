package server

import (
	"io"
	"sync"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// maxInput is how much input is kept for a task that does not read it. As long as there is room, what the caller says behind it is heard:
// that the task is to be cancelled, or how large the terminal is now.
const maxInput = 4 << 20

// inbox holds input between the caller who sends it and the task that reads it, so that neither waits for the other before it must.
type inbox struct {
	mu      sync.Mutex
	wait    *sync.Cond    // of readers
	data    []byte        // guarded by mu
	ended   bool          // guarded by mu; nothing more comes
	left    bool          // guarded by mu; nothing more comes from this caller
	dropped bool          // guarded by mu; nobody reads any more
	room    chan struct{} // guarded by mu; closed when there is room again
}

func newInbox() *inbox {
	b := &inbox{room: make(chan struct{})}
	b.wait = sync.NewCond(&b.mu)
	return b
}

// put keeps data and gives nil, or gives what is closed once it is worth trying again. One piece always fits into an empty inbox.
func (b *inbox) put(data []byte) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dropped || b.ended || b.left {
		return nil
	}
	if len(b.data) > 0 && len(b.data)+len(data) > maxInput {
		return b.room
	}
	b.data = append(b.data, data...)
	b.wait.Broadcast()
	return nil
}

// Read implements io.Reader.
func (b *inbox) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.data) == 0 && !b.ended && !b.dropped && !b.left {
		b.wait.Wait()
	}
	if len(b.data) == 0 && b.left && !b.ended && !b.dropped {
		return 0, v1.ErrInputLeft
	}
	if len(b.data) == 0 || b.dropped {
		return 0, io.EOF
	}
	n := copy(p, b.data)
	if b.data = b.data[n:]; len(b.data) == 0 {
		b.data = nil // or the array would be kept and grow
	}
	b.open()
	return n, nil
}

// end says that nothing more comes.
func (b *inbox) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	b.wait.Broadcast()
	b.open()
}

// leave says that nothing more comes from this caller, and that the input does not end with it.
func (b *inbox) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = true
	b.wait.Broadcast()
	b.open()
}

// drop says that nobody reads any more.
func (b *inbox) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dropped, b.data = true, nil
	b.wait.Broadcast()
	b.open()
}

// open lets those go on who wait for room.
// Preconditions: b.mu is held.
func (b *inbox) open() {
	close(b.room)
	b.room = make(chan struct{})
}
