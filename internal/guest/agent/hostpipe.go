//go:build linux

package agent

import (
	"sync/atomic"

	"github.com/recluse-dev/recluse/internal/guest/blocking"
)

// hostPipe is what the host writes to.
type hostPipe struct {
	fd   int
	long atomic.Int32 // how many operations take so long that the host hardly has anything to say before they end
}

// waitLong says that an operation begins which takes milliseconds, and gives what is to be called when it is over. Meanwhile we wait without
// keeping a processor: see package blocking. A cell is over sooner than that would pay.
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
