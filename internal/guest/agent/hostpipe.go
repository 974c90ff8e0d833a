//go:build linux

package agent

import (
	"errors"
	"io"
	"sync/atomic"

	"golang.org/x/sys/unix"

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
		return readWith(blocking.Read, h.fd, p)
	}
	return blockingReader(h.fd).Read(p)
}

// blockingReader reads with plain blocking calls, which wake up faster here than through the runtime's poller.
type blockingReader int

// Read implements io.Reader.
func (fd blockingReader) Read(p []byte) (int, error) { return readWith(unix.Read, int(fd), p) }

func readWith(read func(fd int, p []byte) (int, error), fd int, p []byte) (int, error) {
	for {
		n, err := read(fd, p)
		if errors.Is(err, unix.EAGAIN) { // whoever started us has left it so
			_, err = blocking.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
			if err == nil {
				continue
			}
		}
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, err
		case n == 0 && len(p) > 0:
			return 0, io.EOF
		}
		return n, nil
	}
}
