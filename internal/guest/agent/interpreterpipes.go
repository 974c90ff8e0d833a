//go:build linux

package agent

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// pump carries what is written to fd 1 or 2 past Python: by C code and by children.
// What Python itself wrote before comes first.
func (i *interpreter) pump(s int) {
	fd := i.pipes[s]
	buf := make([]byte, 4<<10)
	for {
		if err := waitReadable(fd); err != nil {
			i.emitMu.Lock()
			break
		}
		for range 100 {
			if !readable(i.out) {
				break
			}
			time.Sleep(50 * time.Microsecond) // whoever reads the control pipe is about to
		}
		i.emitMu.Lock()
		switch has := polled(fd); {
		case has == 0:
			i.emitMu.Unlock()
			continue // taken by the end of a cell
		case has&unix.POLLIN == 0:
			i.end(s, fd) // nobody is left who could write
			return
		}
		n, err := unix.Read(fd, buf)
		if n > 0 {
			i.deliver(s+1, buf[:n])
			if n == len(buf) && len(buf) < wire.Chunk {
				buf = make([]byte, min(8*len(buf), wire.Chunk))
			}
		}
		if n == 0 && err == nil {
			break
		}
		i.emitMu.Unlock()
		if err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			i.emitMu.Lock()
			break
		}
	}
	i.end(s, fd)
}

// end closes fd 1 or 2 of an interpreter that has gone.
//
// Preconditions: emitMu is held; it is given back.
func (i *interpreter) end(s, fd int) {
	i.pipes[s] = -1
	_ = unix.Close(fd)
	i.emitMu.Unlock()
}

// deliver hands output to the cell of now. Between cells there is nobody to hear it.
//
// Preconditions: emitMu is held.
func (i *interpreter) deliver(stream int, p []byte) {
	if i.op != nil {
		i.op.emit(stream, p)
	}
}

// drain takes what has been written to fds 1 and 2 so far.
//
// Preconditions: emitMu is held.
func (i *interpreter) drain() {
	buf := make([]byte, 0)
	for s, fd := range i.pipes {
		for fd >= 0 && readable(fd) {
			if len(buf) == 0 {
				buf = make([]byte, 64<<10)
			}
			n, _ := unix.Read(fd, buf)
			if n <= 0 {
				break
			}
			i.deliver(s+1, buf[:n])
		}
	}
}

func readable(fd int) bool { return polled(fd)&unix.POLLIN != 0 }

// polled gives what can be said of fd now: POLLIN for data, POLLHUP alone for its end.
func polled(fd int) int16 {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(p, 0); err != nil || n == 0 {
		return 0
	}
	return p[0].Revents
}

// waitReadable blocks until fd has data or has ended.
func waitReadable(fd int) error {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(p, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err
	}
}
