//go:build linux

package interpreter

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/blocking"
	"github.com/recluse-dev/recluse/internal/guest/operation"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// Output of children waits for earlier output of Python, but not for ever.
const (
	orderWait     = 2 * time.Second       // while a cell reads that output: on a busy machine it may be late
	orderWaitAway = 50 * time.Millisecond // between cells, when nothing reads it
)

// pump delivers output that bypasses Python: what C code and children write to fd 1 or 2. Earlier output of Python
// itself is delivered first.
func (i *interpreter) pump(s int) {
	fd := i.pipes[s]
	buf := make([]byte, 4<<10)
	for {
		if err := waitReadable(fd); err != nil {
			i.emitMu.Lock()
			break
		}
		i.awaitEarlier()
		i.emitMu.Lock()
		switch has := blocking.Ready(fd); {
		case has == 0:
			i.emitMu.Unlock()
			continue // drain has read it at the end of a cell
		case has&unix.POLLIN == 0:
			i.end(s, fd) // no writer is left
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

// awaitEarlier waits until the output of Python that is in the control pipe has been delivered.
func (i *interpreter) awaitEarlier() {
	began, pause := time.Now(), 50*time.Microsecond
	for blocking.Readable(i.out) || i.holding.Load() { // in this order: see control.Read
		limit := orderWaitAway
		if i.reading.Load() {
			limit = orderWait
		}
		if time.Since(began) > limit {
			return
		}
		time.Sleep(pause)
		pause = min(2*pause, 2*time.Millisecond)
	}
}

// control is the control pipe from the interpreter. It notes that what it has read is not delivered yet.
type control struct{ *interpreter }

// Read implements io.Reader. The caller has delivered everything that was read before.
func (c control) Read(p []byte) (int, error) {
	c.holding.Store(false)
	if err := waitReadable(c.out); err != nil {
		return 0, err
	}
	c.holding.Store(true) // before the pipe becomes empty, so that awaitEarlier sees one of both
	return blocking.FD(c.out).Read(p)
}

// end closes the guest's end of fd 1 or 2 after all writers have gone.
//
// Preconditions: emitMu is held; end unlocks it.
func (i *interpreter) end(s, fd int) {
	i.pipes[s] = -1
	_ = unix.Close(fd)
	i.emitMu.Unlock()
}

// setOutput makes o the operation that receives output from now on.
func (i *interpreter) setOutput(o *operation.Operation) {
	i.emitMu.Lock()
	defer i.emitMu.Unlock()
	i.op = o
}

// deliver passes output to the running cell. Output between cells is dropped.
//
// Preconditions: emitMu is held.
func (i *interpreter) deliver(stream int, p []byte) {
	if i.op != nil {
		i.op.Emit(stream, p)
	}
}

// drain reads and delivers the data that is in the pipes of fds 1 and 2 now.
//
// Preconditions: emitMu is held.
func (i *interpreter) drain() {
	buf := make([]byte, 0)
	for s, fd := range i.pipes {
		for fd >= 0 && blocking.Readable(fd) {
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
