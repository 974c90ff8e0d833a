//go:build linux

package agent

import (
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/recluse-dev/recluse/internal/guest/blocking"
)

// hostPipe is the pipe from the host.
type hostPipe struct {
	fd   int
	port bool         // fd is a serial port, where a read returns 0 bytes while no host is connected
	long atomic.Int32 // running operations that take so long that the host hardly sends anything before they end
}

// beginLong records the begin of an operation that takes milliseconds, and returns a function that records its end.
// Meanwhile reads do not occupy a processor (P) of the Go scheduler: see package blocking. A cell is too short for this
// to pay off.
func (h *hostPipe) beginLong() (end func()) {
	h.long.Add(1)
	return func() { h.long.Add(-1) }
}

// reconnectPoll is how often a serial port is asked whether a host is connected again. The kernel cannot wait for that:
// poll reports a hangup meanwhile.
const reconnectPoll = 20 * time.Millisecond

// Read implements io.Reader.
func (h *hostPipe) Read(p []byte) (int, error) {
	for {
		n, err := h.read(p)
		if !h.port || n > 0 || err != nil && !errors.Is(err, io.EOF) {
			return n, err
		}
		time.Sleep(reconnectPoll)
	}
}

func (h *hostPipe) read(p []byte) (int, error) {
	if h.long.Load() > 0 {
		return blocking.ReadWith(blocking.Read, h.fd, p)
	}
	return blocking.FD(h.fd).Read(p)
}
