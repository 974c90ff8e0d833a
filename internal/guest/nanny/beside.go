//go:build linux

package nanny

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// A process in a tree can request another one in the same tree, which runs as root: sudo. The guest decides, and passes
// the connection of the requester to the nanny. The nanny is the parent of the new process, so it ends with the tree.
// It reports the end on the connection, from which it reads signals for the process.

// maxBeside is the largest number of such processes of a nanny.
const maxBeside = 64

// Answer is a message to the requester of a process.
type Answer struct {
	Error   string `json:"error,omitempty"` // it was not started
	Started bool   `json:"started,omitempty"`
	Ended   bool   `json:"ended,omitempty"`
	Status  int    `json:"status,omitempty"` // with Ended: its wait status
}

// besides are the processes that were started beside the main process.
type besides struct {
	// startMu is held while a process is started, and while the nanny checks that no child is left.
	startMu sync.Mutex
	running bool // guarded by startMu; the tree has not ended

	mu       sync.Mutex
	changed  *sync.Cond
	starting bool                    // guarded by mu
	early    map[int]unix.WaitStatus // guarded by mu; of children that changed their state while one was starting
	conns    map[int]conn            // guarded by mu; connections of the requesters, by pid
}

func newBesides() *besides {
	b := &besides{early: map[int]unix.WaitStatus{}, conns: map[int]conn{}}
	b.changed = sync.NewCond(&b.mu)
	return b
}

// Beside starts a process in the tree that the nanny runs. The first file is the connection of the requester, which
// receives Answers; the others become fds 0, 1, 2, …
func (n *Nanny) Beside(s *Start, files []int) error {
	s.Files = len(files)
	return n.send(&request{Beside: s}, files)
}

// startBeside starts a process for a requester. fds[0] is the connection.
func (n *nannyProcess) startBeside(s *Start, fds []int) {
	if len(fds) == 0 {
		return
	}
	c := conn{fd: fds[0]}
	fail := func(text string) {
		_ = c.send(&Answer{Error: text}, nil)
		_ = unix.Close(c.fd)
	}
	defer func() {
		for _, fd := range fds[1:] {
			_ = unix.Close(fd)
		}
	}()
	b := n.besides
	b.startMu.Lock()
	defer b.startMu.Unlock()
	b.mu.Lock()
	many := len(b.conns) >= maxBeside
	b.mu.Unlock()
	switch count, err := n.countInside(); {
	case !b.running:
		fail("the command has ended")
	case many:
		fail(fmt.Sprintf("the command already runs %d processes of other users", maxBeside))
	case err == nil && n.cfg.Processes > 0 && count >= n.cfg.Processes:
		fail(fmt.Sprintf("the limit of %d processes is reached", n.cfg.Processes))
	default:
		pid, err := n.forkBeside(s, fds[1:], c)
		if errors.Is(err, unix.EAGAIN) && n.cfg.Processes > 0 {
			err = fmt.Errorf("the limit of %d processes is reached", n.cfg.Processes)
		}
		if err != nil {
			fail(err.Error())
			return
		}
		go n.forward(pid, c)
	}
}

func (n *nannyProcess) countInside() (int, error) {
	if n.cage == nil {
		return 0, nil
	}
	return n.cage.Count()
}

// forkBeside starts a process while another goroutine waits for all children, which tells it when the process has
// stopped. See fork.
func (n *nannyProcess) forkBeside(s *Start, fds []int, c conn) (int, error) {
	b := n.besides
	attr := n.attributes(s, fds)
	b.mu.Lock()
	b.starting = true
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.starting = false
		clear(b.early)
		b.mu.Unlock()
	}()
	attr.Sys.Ptrace = n.cage != nil
	pid, err := syscall.ForkExec(string(s.Path), s.args(), attr)
	if err != nil {
		return 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	ws, seen := b.early[pid]
	for n.cage != nil && !seen {
		b.changed.Wait()
		ws, seen = b.early[pid]
	}
	if seen && !ws.Stopped() {
		return 0, errors.New("killed while it was started")
	}
	if n.cage != nil {
		if err = n.cage.Enter(pid); err == nil {
			err = unix.PtraceDetach(pid)
		}
	}
	if err != nil {
		signal(pid, unix.SIGKILL)
		return 0, err
	}
	b.conns[pid] = c
	return pid, c.send(&Answer{Started: true}, nil)
}

// forward sends the process the signals that its requester names, one in each byte. If the requester is gone, it sends
// SIGHUP.
func (n *nannyProcess) forward(pid int, c conn) {
	b := n.besides
	text := make([]byte, 1)
	for {
		k, err := unix.Read(c.fd, text)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		s := unix.SIGHUP
		if k > 0 {
			s = unix.Signal(text[0])
		}
		b.mu.Lock()
		_, alive := b.conns[pid]
		if alive { // it is not reaped, so the pid is its own
			signal(pid, s)
		}
		b.mu.Unlock()
		if k <= 0 || !alive {
			_ = unix.Close(c.fd)
			return
		}
	}
}

// observe records a change of a child's state, and reports whether that was the stop of a process that is starting.
func (n *nannyProcess) observe(pid int, ws unix.WaitStatus) (stopped bool) {
	b := n.besides
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.starting {
		b.early[pid] = ws
		b.changed.Broadcast()
	}
	if ws.Stopped() {
		return true
	}
	if c, ok := b.conns[pid]; ok {
		delete(b.conns, pid)
		_ = c.send(&Answer{Ended: true, Status: int(ws)}, nil) // the requester may be gone
		_ = unix.Shutdown(c.fd, unix.SHUT_RDWR)                // forward closes it
	}
	return false
}

// over reports whether no child is left and none is being started, and ends the tree in that case.
func (n *nannyProcess) over() bool {
	b := n.besides
	if !b.startMu.TryLock() { // startBeside waits for reap
		return false
	}
	defer b.startMu.Unlock()
	if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil); err == nil {
		return false
	}
	b.running = false
	return true
}
