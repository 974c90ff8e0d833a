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

	"github.com/recluse-dev/recluse/internal/guest/privilege"
)

// Nanny is the guest's handle of a nanny process. Begin, Start, Next and Tree are for the one goroutine that owns the
// nanny; signals and requests may come from any goroutine.
type Nanny struct {
	conn conn
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has been reaped
	tree int           // number of starts requested

	sendMu sync.Mutex
	closed bool // guarded by sendMu
	more   bool // guarded by sendMu; a request was sent after the last Start
}

// Spawn starts a nanny from the guest's own binary.
func Spawn(self string, cfg Config) (*Nanny, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("start a nanny: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "nanny")
	defer theirs.Close()
	cfg.Caged = cfg.Cage != nil
	config, err := json.Marshal(cfg)
	if err != nil {
		unix.Close(fds[0])
		return nil, err
	}
	cmd := exec.Command(self, Arg, string(config)) //nolint:forbidigo // the nanny ends when its socket is closed
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if cfg.Root {
		privilege.Namespace(cmd.SysProcAttr, cfg.Spared)
	}
	if cfg.Caged {
		cmd.ExtraFiles = append(cmd.ExtraFiles, cfg.Cage.Procs, cfg.Cage.Current)
	}
	if err := cmd.Start(); err != nil {
		unix.Close(fds[0])
		return nil, fmt.Errorf("start a nanny: %w", err)
	}
	n := &Nanny{conn: conn{fd: fds[0]}, cmd: cmd, done: make(chan struct{})}
	release := keepAwake(n)
	go func() {
		defer close(n.done)
		defer release()
		_ = cmd.Wait() // the owner learns of the end through the socket
	}()
	return n, nil
}

// PID returns the pid of the nanny itself.
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

// QueueEmpty reports whether the nanny has read everything that was sent to it, as far as the kernel can tell.
func (n *Nanny) QueueEmpty() bool {
	left, err := unix.IoctlGetInt(n.conn.fd, unix.SIOCOUTQ)
	return err != nil || left == 0
}

// Next waits for the next event.
func (n *Nanny) Next() (*Event, error) {
	e := &Event{}
	if err := n.conn.receive(e); err != nil {
		return nil, fmt.Errorf("nanny: %w", err)
	}
	return e, nil
}

// ErrLost means that the nanny died while it was starting a process. The process may be running.
var ErrLost = errors.New("the nanny died while it started a process")

// ErrDead means that the nanny died before it could start the process.
var ErrDead = errors.New("the nanny died before it could start a process")

// Begin requests the start of a process. The files, which are descriptors of this process and stay open, become its fds
// 0, 1, 2, … The next event has its PID, or Errno. For a mute start that succeeds there is no event before the end,
// unless RequestPID requests one.
func (n *Nanny) Begin(s *Start, files []int) error {
	s.Files = len(files)
	n.tree++
	err := n.send(&request{Start: s}, files)
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		err = fmt.Errorf("%w: %w", ErrDead, err)
	}
	return err
}

// Start is Begin, and waits until the process runs. The event has its PID, or Errno.
func (n *Nanny) Start(s *Start, files []int) (*Event, error) {
	if err := n.Begin(s, files); err != nil {
		return nil, err
	}
	e, err := n.Next()
	for err == nil && e.Listed {
		e, err = n.Next() // requested by the previous user of this nanny
	}
	return e, n.StartError(err)
}

// StartError classifies an error that Next returned instead of the first event of a process, as ErrDead or ErrLost.
func (n *Nanny) StartError(err error) error {
	if err == nil {
		return nil
	}
	n.sendMu.Lock()
	more := n.more
	n.sendMu.Unlock()
	if errors.Is(err, unix.ECONNRESET) && !more {
		return fmt.Errorf("%w: %w", ErrDead, err) // the unread request can only be the Start
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

// Tree returns the number of the tree that was begun last, for Signal and SignalTree.
func (n *Nanny) Tree() int { return n.tree }

// FD returns the descriptor that Next reads. It can be polled when HasEvent returns false.
func (n *Nanny) FD() int { return n.conn.fd }

// HasEvent reports whether Next can return a buffered event without reading.
func (n *Nanny) HasEvent() bool { return n.conn.complete() }

// RequestPID requests an event with the PID of the main process of a mute start. There is none if the process has
// ended.
func (n *Nanny) RequestPID() error { return n.send(&request{Tell: true}, nil) }

// RequestList requests an event with Listed that lists the processes below the nanny, except the main process.
func (n *Nanny) RequestList() error { return n.send(&request{List: true}, nil) }

// Signal sends a signal to the main process of a tree and, with group, to its process group. It does nothing if the
// nanny runs another tree by now. An error means that the nanny has died, which Next also reports.
func (n *Nanny) Signal(tree int, s syscall.Signal, group bool) error {
	return n.send(&request{Signal: int(s), Of: tree, Group: group}, nil)
}

// SignalTree sends a signal to all processes of a tree. SIGKILL is repeated until none is left. It does nothing if the
// nanny runs another tree by now.
func (n *Nanny) SignalTree(tree int, s syscall.Signal) error {
	return n.send(&request{Signal: int(s), Of: tree, Tree: true}, nil)
}

// Kill kills exactly these processes.
func (n *Nanny) Kill(these []Process) error {
	if len(these) == 0 {
		return nil
	}
	return n.send(&request{Kill: these}, nil)
}

// Close ends the nanny and kills everything it has started.
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
