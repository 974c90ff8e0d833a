//go:build linux

package agent

import (
	"sync/atomic"

	"github.com/recluse-dev/recluse/internal/guest/blocking"
)

// hostPipe is the pipe from the host.
type hostPipe struct {
	fd   int
	long atomic.Int32 // running operations that take so long that the host hardly sends anything before they end
}

// beginLong records the begin of an operation that takes milliseconds, and returns a function that records its end.
// Meanwhile reads do not occupy a processor (P) of the Go scheduler: see package blocking. A cell is too short for this
// to pay off.
func (h *hostPipe) beginLong() (end func()) {
	h.long.Add(1)
	return func() { h.long.Add(-1) }
}

// Read implements io.Reader.
func (h *hostPipe) Read(p []byte) (int, error) {
	if h.long.Load() > 0 {
		return blocking.ReadWith(blocking.Read, h.fd, p)
	}
	return blocking.FD(h.fd).Read(p)
}
