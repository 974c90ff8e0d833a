//go:build linux

package agent

import (
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/blocking"
	"github.com/recluse-dev/recluse/internal/guest/nanny"
	"github.com/recluse-dev/recluse/internal/guest/operation"
	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// plumbing holds the descriptors of a command. It does not use os.File, which makes several system calls for each
// descriptor: they are expensive in gVisor.
type plumbing struct {
	theirs  []int // for the command; with a terminal all are equal
	outputs []int // blocking descriptors: stdout, stderr
}

func (p *plumbing) close() {
	p.closeTheirs()
	for _, fd := range p.outputs {
		_ = unix.Close(fd)
	}
}

// closeTheirs closes the guest's copies of the command's descriptors.
func (p *plumbing) closeTheirs() {
	for _, fd := range slices.Compact(slices.Clone(p.theirs)) {
		_ = unix.Close(fd)
	}
}

func openNull() (int, error) { return unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0) }

// duplicate returns a duplicate of the descriptor of f, and closes f.
func duplicate(f *os.File) (int, error) {
	defer f.Close()
	return unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
}

// plumb creates the pipes or the terminal.
func (c *running) plumb() (*plumbing, error) {
	p := &plumbing{}
	if c.req.Pty {
		master, slave, err := pty.Open()
		if err != nil {
			return nil, err
		}
		if u := c.owner(); c.agent.switchesUser() {
			if err := slave.Chown(u.UID, u.GID); err != nil {
				_ = master.Close()
				_ = slave.Close()
				return nil, err
			}
		}
		c.tty, c.stdin = master, master
		_ = c.resize(max(c.req.Rows, 1), max(c.req.Cols, 1)) // ignore an invalid size
		// The pump reads through its own blocking descriptor.
		theirs, err := duplicate(slave)
		if err != nil {
			_ = master.Close()
			return nil, err
		}
		p.theirs = []int{theirs, theirs, theirs}
		fd, err := unix.FcntlInt(master.Fd(), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			_ = master.Close()
			p.close()
			return nil, err
		}
		p.outputs = []int{fd}
		return p, nil
	}
	if c.req.Options.Stdin {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		fd, err := duplicate(r)
		if err != nil {
			_ = w.Close()
			return nil, err
		}
		c.stdin = w
		p.theirs = append(p.theirs, fd)
	} else {
		fd, err := openNull()
		if err != nil {
			return nil, err
		}
		p.theirs = append(p.theirs, fd)
	}
	for range 2 {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			p.close()
			c.closeInput()
			return nil, err
		}
		p.outputs = append(p.outputs, fds[0])
		if u := c.owner(); c.agent.switchesUser() {
			// Code may open the pipe by name: /dev/stderr is a link to it. If the chown is refused, only such programs
			// fail.
			_ = unix.Fchown(fds[1], u.UID, u.GID)
		}
		p.theirs = append(p.theirs, fds[1])
	}
	return p, nil
}

// owner returns the user who shall own the descriptors of the command, if the guest can switch users.
func (c *running) owner() nanny.User {
	if c.user != nil {
		return nanny.User{UID: c.user.UID, GID: c.user.GID}
	}
	return nanny.User{UID: c.agent.cfg.UID, GID: c.agent.cfg.GID}
}

// tap reads one output stream of the command.
type tap struct {
	op     *operation.Operation
	stream int
	buf    []byte
	blocks bool // fd is in blocking mode
	shared bool // the reader also waits for other descriptors, so a read must not block

	mu      sync.Mutex
	fd      int  // guarded by mu; -1 after the end
	sending bool // guarded by mu; data is being sent
}

// dry reports whether everything written so far has been sent, and whether data is waiting for the listener.
func (t *tap) dry() (dry, waits bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.fd < 0 || !t.sending && !blocking.Readable(t.fd), t.sending
}

func (t *tap) set(sending bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sending = sending
}

func (t *tap) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = unix.Close(t.fd)
	t.fd = -1
}

// end closes the pipe and marks the end of the stream.
func (t *tap) end() {
	t.close()
	t.op.Output(t.stream).End()
}

// readRest reads the remaining data if the pipe has no writer any more.
func (t *tap) readRest() {
	switch p := blocking.Ready(t.fd); {
	case p&unix.POLLHUP == 0:
	case p&unix.POLLIN == 0:
		t.end()
	default:
		for got := true; got && t.fd >= 0; {
			got = t.read()
		}
	}
}

// drain reads until the end of the stream.
func (t *tap) drain() {
	t.shared = false
	for t.fd >= 0 {
		t.read()
	}
}

const (
	// flood is the read size for a stream with much output: nearly the whole pipe, which then has floodPipe bytes.
	flood, floodPipe = 4 * wire.Chunk, 1 << 20
	// floodPause is the pause between two reads of such a stream if the last read did not fill the buffer. Each read,
	// and each frame to the host, costs more than the bytes in it. Meanwhile the pipe holds new data.
	floodPause = 200 * time.Microsecond
)

// read reads available data, or waits for it if the descriptor blocks. It reports whether there was any.
func (t *tap) read() bool {
	fd := t.fd // only this goroutine changes it
	if t.blocks == t.shared {
		// Polling is not enough: the command can open its own pipes and read the data first. The flag does not affect
		// the open file description of the writers.
		flags := 0
		if t.shared {
			flags = unix.O_NONBLOCK
		}
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags) // cannot fail for our own pipe
		t.blocks = !t.shared
	}
	if t.buf == nil {
		t.buf = make([]byte, 4<<10)
	}
	n, err := unix.Read(fd, t.buf)
	switch {
	case n > 0:
	case errors.Is(err, unix.EINTR):
		return true
	case errors.Is(err, unix.EAGAIN):
		return false // code in the sandbox has opened the same pipe and read the data
	default:
		t.end() // for a terminal the error is EIO
		return false
	}
	t.set(true)
	t.op.Emit(t.stream, t.buf[:n])
	t.set(false)
	switch {
	case n == len(t.buf) && n < flood:
		// The stream fills the buffer: use fewer, larger reads.
		t.buf = make([]byte, min(8*n, flood))
		if len(t.buf) >= wire.Chunk {
			_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, floodPipe) // an optimisation that may be refused
		}
	case len(t.buf) >= wire.Chunk && n < len(t.buf):
		// time.Sleep would use the poller and timers of the runtime: five system calls instead of one.
		pause := unix.NsecToTimespec(int64(floodPause))
		_ = unix.Nanosleep(&pause, nil) // a signal may end it early, which is harmless
	}
	return true
}
