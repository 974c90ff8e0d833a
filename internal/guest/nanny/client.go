//go:build linux

package nanny

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Nanny is the guest's hold on a nanny process. What begins, hears and names a tree is for the one
// goroutine that owns it; signals and requests may come from any.
type Nanny struct {
	conn conn
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has been reaped
	tree int           // how many it was asked to start

	sendMu sync.Mutex
	closed bool // guarded by sendMu
	more   bool // guarded by sendMu; something was sent behind the last Start
}

// Spawn starts a nanny from the guest's own binary.
func Spawn(self string, cfg Config) (*Nanny, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("start a nanny: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "nanny")
	defer theirs.Close()
	config, err := json.Marshal(cfg)
	if err != nil {
		unix.Close(fds[0])
		return nil, err
	}
	cmd := exec.Command(self, Arg, string(config)) //nolint:forbidigo // it ends with its socket
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		unix.Close(fds[0])
		return nil, fmt.Errorf("start a nanny: %w", err)
	}
	n := &Nanny{conn: conn{fd: fds[0]}, cmd: cmd, done: make(chan struct{})}
	release := keepAwake(n)
	go func() {
		defer close(n.done)
		defer release()
		_ = cmd.Wait() // however it ended, the socket tells the owner
	}()
	return n, nil
}

// PID is the nanny's own.
func (n *Nanny) PID() int { return n.cmd.Process.Pid }

func (n *Nanny) send(r *request, files []int) error {
	n.sendMu.Lock()
	defer n.sendMu.Unlock()
	if n.closed {
		return os.ErrClosed
	}
	err := n.conn.send(r, files)
	if err == nil {
		n.more = r.Start == nil
	}
	return err
}

// Taken says that the nanny has read what was sent to it, as far as the kernel tells.
func (n *Nanny) Taken() bool {
	left, err := unix.IoctlGetInt(n.conn.fd, unix.SIOCOUTQ)
	return err != nil || left == 0
}

// Next waits for the nanny's next word.
func (n *Nanny) Next() (*Event, error) {
	e := &Event{}
	if err := n.conn.receive(e); err != nil {
		return nil, fmt.Errorf("nanny: %w", err)
	}
	return e, nil
}

// ErrLost says that the nanny died while it was to start a process, which may run by now.
var ErrLost = errors.New("the nanny has died")

// ErrDead says that the nanny was dead before it could start anything.
var ErrDead = errors.New("the nanny is dead")

// Begin has a process started; the files, descriptors of ours that stay open, become its fds 0, 1, 2, … Next tells how it went: with its PID, or Errno.
// Of a mute start that succeeds nothing is told before its end, unless RequestPID asks.
func (n *Nanny) Begin(s *Start, files []int) error {
	s.Files = len(files)
	n.tree++
	err := n.send(&request{Start: s}, files)
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		err = fmt.Errorf("%w: %w", ErrDead, err)
	}
	return err
}

// Start is Begin and waits until the process runs. The event has its PID, or Errno.
func (n *Nanny) Start(s *Start, files []int) (*Event, error) {
	if err := n.Begin(s, files); err != nil {
		return nil, err
	}
	e, err := n.Next()
	for err == nil && e.Listed {
		e, err = n.Next() // what the last user of this nanny had asked for
	}
	return e, n.Started(err)
}

// Started says what an error means that Next gave in place of the first word about a process.
func (n *Nanny) Started(err error) error {
	if err == nil {
		return nil
	}
	n.sendMu.Lock()
	more := n.more
	n.sendMu.Unlock()
	if errors.Is(err, unix.ECONNRESET) && !more {
		return fmt.Errorf("%w: %w", ErrDead, err) // what it left unread can only be the Start
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

// Tree names what was begun last, for those who signal it.
func (n *Nanny) Tree() int { return n.tree }

// FD is where Next reads, to be polled when nothing is Heard.
func (n *Nanny) FD() int { return n.conn.fd }

// Heard says that there is a word which has been read already.
func (n *Nanny) Heard() bool { return n.conn.complete() }

// RequestPID asks for the main process of a mute start; an event with PID answers, unless it has ended.
func (n *Nanny) RequestPID() error { return n.send(&request{Tell: true}, nil) }

// RequestList asks what lives below the nanny but the main process; an event with Listed answers.
func (n *Nanny) RequestList() error { return n.send(&request{List: true}, nil) }

// Signal sends to the main process of a tree, and to its process group if asked. It does nothing once the
// nanny looks after another one. An error says that the nanny has died, which whoever waits for its next word hears as well.
func (n *Nanny) Signal(tree int, s syscall.Signal, group bool) error {
	return n.send(&request{Signal: int(s), Of: tree, Group: group}, nil)
}

// SignalTree sends to everything that the main process has started, and to itself. SIGKILL goes on until
// nothing is left. It does nothing once the nanny looks after another tree.
func (n *Nanny) SignalTree(tree int, s syscall.Signal) error {
	return n.send(&request{Signal: int(s), Of: tree, Tree: true}, nil)
}

// Kill ends exactly these.
func (n *Nanny) Kill(these []Process) error {
	if len(these) == 0 {
		return nil
	}
	return n.send(&request{Kill: these}, nil)
}

// Close ends the nanny and whatever it has started.
func (n *Nanny) Close() {
	n.sendMu.Lock()
	if !n.closed {
		n.closed = true
		_ = unix.Shutdown(n.conn.fd, unix.SHUT_RDWR)
	}
	n.sendMu.Unlock()
	<-n.done
	n.sendMu.Lock()
	defer n.sendMu.Unlock()
	if n.conn.fd >= 0 {
		unix.Close(n.conn.fd)
		n.conn.fd = -1
	}
}
