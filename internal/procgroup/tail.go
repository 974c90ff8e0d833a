package procgroup

import (
	"bytes"
	"strings"
	"sync"
)

// Tail keeps the last bytes that a program has written, for the error that tells of its end. It may be read while the program writes.
type Tail struct {
	Max int // bytes; more are forgotten

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

// String gives it as text, without the space around it.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(string(bytes.TrimSpace(t.data)), "\uFFFD")
}
