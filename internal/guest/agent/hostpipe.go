//go:build linux

package agent

import (
	"sync/atomic"

	"github.com/recluse-dev/recluse/internal/guest/blocking"
)

// hostPipe is what the host writes to.
type hostPipe struct {
	fd   int
	long atomic.Int32 // how many operations run that take so long that the host will hardly send anything before they end
}

// waitLong records that an operation begins which takes milliseconds, and returns what to call when it is over. Meanwhile reads do not keep
// one of Go's processors: see package blocking. A cell is over sooner than that would pay.
func (h *hostPipe) waitLong() (over func()) {
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
