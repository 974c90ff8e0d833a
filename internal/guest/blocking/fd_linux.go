package blocking

import (
	"errors"
	"io"

	"golang.org/x/sys/unix"
)

// FD is a descriptor that is read with plain system calls. In a sandbox they wake up faster than the runtime's poller.
type FD int

// Read implements io.Reader.
func (fd FD) Read(p []byte) (int, error) { return ReadWith(unix.Read, int(fd), p) }

// ReadWith implements io.Reader with unix.Read or Read. It also waits if the parent process has made the descriptor
// non-blocking.
func ReadWith(read func(fd int, p []byte) (int, error), fd int, p []byte) (int, error) {
	for {
		n, err := read(fd, p)
		if errors.Is(err, unix.EAGAIN) {
			_, err = Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
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

// Ready returns the poll events of fd without waiting: POLLIN for data, POLLHUP alone for its end.
func Ready(fd int) int16 {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(p, 0); err != nil || n == 0 {
		return 0
	}
	return p[0].Revents
}

// Readable reports whether fd has data.
func Readable(fd int) bool { return Ready(fd)&unix.POLLIN != 0 }
