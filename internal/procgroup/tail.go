package procgroup

import (
	"bytes"
	"strings"
	"sync"
)

// Tail stores the last bytes that a program has written, for the error that reports its end. It may be read while the
// program writes.
type Tail struct {
	Max int // number of bytes; earlier bytes are dropped

	mu   sync.Mutex
	data []byte // guarded by mu
}

// Write implements io.Writer.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, p...)
	if over := len(t.data) - t.Max; over > 0 {
		t.data = append(t.data[:0], t.data[over:]...)
	}
	return len(p), nil
}

// String returns the bytes as text, without leading and trailing white space.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(string(bytes.TrimSpace(t.data)), "\uFFFD")
}
