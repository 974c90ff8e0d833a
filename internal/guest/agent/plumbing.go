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

// plumbing is the descriptors of a command. They are no os.File, which makes several system calls for each: those are expensive in gVisor.
type plumbing struct {
	theirs  []int // what the command gets; with a terminal all are the same
	outputs []int // blocking descriptors: stdout, stderr
}

func (p *plumbing) close() {
	p.handed()
	for _, fd := range p.outputs {
		_ = unix.Close(fd)
	}
}

// handed closes the guest's copies of what the command has got, or will never get.
func (p *plumbing) handed() {
	for _, fd := range slices.Compact(slices.Clone(p.theirs)) {
		_ = unix.Close(fd)
	}
}

func openNull() (int, error) { return unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0) }

// duplicate returns a descriptor of a file, and closes the file.
func duplicate(f *os.File) (int, error) {
	defer f.Close()
	return unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
}

// plumb makes the pipes, or the terminal.
func (c *running) plumb() (*plumbing, error) {
	p := &plumbing{}
	if c.req.Pty {
		master, slave, err := pty.Open()
		if err != nil {
			return nil, err
		}
		if u := c.owner(); u.UID > 0 {
			if err := slave.Chown(u.UID, u.GID); err != nil {
				_ = master.Close()
				_ = slave.Close()
				return nil, err
			}
		}
		c.tty, c.stdin = master, master
		_ = c.resize(max(c.req.Rows, 1), max(c.req.Cols, 1)) // an invalid size is no reason not to run
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
		if u := c.owner(); u.UID > 0 {
			// Code may open it by name: /dev/stderr is a link to it. Where that is refused only such programs suffer.
			_ = unix.Fchown(fds[1], u.UID, u.GID)
		}
		p.theirs = append(p.theirs, fds[1])
	}
	return p, nil
}

// owner returns whose the descriptors of the command are to be; UID < 1: they stay the guest's.
func (c *running) owner() nanny.User {
	if c.user != nil {
		return nanny.User{UID: c.user.UID, GID: c.user.GID}
	}
	return nanny.User{UID: c.agent.cfg.UID, GID: c.agent.cfg.GID}
}

// tap is where a stream of the command comes out.
type tap struct {
	op     *operation.Operation
	stream int
	buf    []byte
	waits  bool // a read waits until there is something
	shared bool // its reader waits for other descriptors as well, so a read must not wait

	mu      sync.Mutex
	fd      int  // guarded by mu; -1 after the end
	sending bool // guarded by mu; what was read is being sent
}

// dry reports whether everything written so far has been sent; waits that the listener is slow to take it.
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

// end closes the pipe: nothing more comes.
func (t *tap) end() {
	t.close()
	t.op.Output(t.stream).End()
}

// rest reads what is left, if the pipe has no writer any more.
func (t *tap) rest() {
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

// drain reads to the end.
func (t *tap) drain() {
	t.shared = false
	for t.fd >= 0 {
		t.read()
	}
}

const (
	// flood is how much is read at once of a stream that does not stop: nearly all that its pipe, of floodPipe bytes then, holds.
	flood, floodPipe = 4 * wire.Chunk, 1 << 20
	// gathering is the pause between two reads of a flood when the last one did not fill the buffer. Each read, and each frame to the
	// host, costs more than the bytes in it; the pipe has room for what comes meanwhile.
	gathering = 200 * time.Microsecond
)

// read takes what there is, or waits for it if the pipe blocks, and reports whether there was anything.
func (t *tap) read() bool {
	fd := t.fd // only its reader changes it
	if t.waits == t.shared {
		// The command can read its own pipes as well, and be faster. The flag does not concern the writers' open file description.
		flags := 0
		if t.shared {
			flags = unix.O_NONBLOCK
		}
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags) // for a pipe of ours that can't fail
		t.waits = !t.shared
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
		return false // code in the sandbox has opened the same pipe, and was faster
	default:
		t.end() // for a terminal that is EIO
		return false
	}
	t.set(true)
	t.op.Emit(t.stream, t.buf[:n])
	t.set(false)
	switch {
	case n == len(t.buf) && n < flood:
		// A stream that fills the buffer is a flood: fewer, larger reads.
		t.buf = make([]byte, min(8*n, flood))
		if len(t.buf) >= wire.Chunk {
			_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, floodPipe) // an optimisation that may be refused
		}
	case len(t.buf) >= wire.Chunk && n < len(t.buf):
		// Not time.Sleep, which goes through the runtime's poller and timers: five system calls where this is one.
		pause := unix.NsecToTimespec(int64(gathering))
		_ = unix.Nanosleep(&pause, nil) // a signal ends it early, which does no harm
	}
	return true
}
