//go:build linux

// Package nanny runs one process tree and can end all of it.
//
// A process may leave its group, its session and its parent, but not the nearest
// subreaper above it: when its parent dies the kernel hands it there. So every command
// and interpreter is started by a small process of ours that has made itself a
// subreaper, the nanny. Whatever lives below the nanny was started by the command and
// nothing else was, however often it forked, whatever signals it ignores. That holds
// on every Linux and in gVisor and needs no capability.
//
// Ending a tree races with its forks. The nanny first stops everything it finds until
// it finds nothing new, so that the number of processes can no longer grow, then
// kills until no child is left. Both loops read the table anew each time round; a
// pid is signalled only while it is below us, and nothing but us reaps it there, so it
// cannot have been used again for another process.
//
// A nanny costs a start of our own binary, so it is kept and serves the next command as
// soon as the last one has left no process behind. A signal may be under way at that moment, so each
// names the tree it is for, and one for an earlier tree is dropped.
package nanny

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/blocking"
)

// Start says what to run. The files that go with it become fds 0, 1, 2, …
type Start struct {
	Argv [][]byte `json:"argv"`
	Path []byte   `json:"path"`
	Env  [][]byte `json:"env"`
	Dir  []byte   `json:"dir"`
	// TTY makes fd 0 the controlling terminal of a new session.
	TTY bool `json:"tty,omitempty"`
	// Mute: its start is not reported, only how it ended, or that it could not be started; see Nanny.Begin.
	Mute bool `json:"mute,omitempty"`
	// Spared: there is more to lose than with others, so others are offered first where the kernel kills for memory.
	Spared bool `json:"spared,omitempty"`
	// User is whose process it is; nil: as in Config. Only a nanny that is root can switch.
	User *User `json:"user,omitempty"`
	// Files is how many files go with it; Nanny.Begin fills it in.
	Files int `json:"files"`
}

// User is the user and the group of a process.
type User struct {
	UID int `json:"uid"`
	GID int `json:"gid"`
}

// Config is what a nanny is told once. Everything it starts inherits it.
type Config struct {
	UID       int  `json:"uid"` // of what it starts; -1: its own
	GID       int  `json:"gid"`
	Processes int  `json:"processes,omitempty"` // RLIMIT_NPROC, 0: leave
	OpenFiles int  `json:"open_files,omitempty"`
	Threads   int  `json:"threads,omitempty"`   // to have from the start; see KeepThreads
	OOMScore  int  `json:"oom_score,omitempty"` // oom_score_adj of what it starts, 0: leave
	Filter    bool `json:"filter,omitempty"`    // of system calls, also where what it starts is its own user
}

// Process is one of the tree.
type Process struct {
	PID     int    `json:"pid"`
	PPID    int    `json:"ppid"`
	Start   uint64 `json:"start"`
	Command string `json:"command,omitempty"`
}

// Usage is what was used by the processes reaped so far.
type Usage struct {
	CPUNanos int64 `json:"cpu_ns"`
	MaxRSS   int64 `json:"max_rss"`
}

// request goes from the guest to the nanny.
type request struct {
	Start  *Start    `json:"start,omitempty"`
	Signal int       `json:"signal,omitempty"` // to the main process
	Of     int       `json:"of,omitempty"`     // with Signal: the tree that is meant, by its number in the order of starts
	Group  bool      `json:"group,omitempty"`  // with Signal: to its process group as well
	Tree   bool      `json:"tree,omitempty"`   // with Signal: to everything; SIGKILL goes on until nothing is left
	List   bool      `json:"list,omitempty"`
	Tell   bool      `json:"tell,omitempty"` // the main process, if it still runs
	Kill   []Process `json:"kill,omitempty"` // exactly these, if they are still the same
}

// Event goes from the nanny to the guest.
type Event struct {
	PID   int    `json:"pid,omitempty"`   // of the main process: it has started
	Errno int    `json:"errno,omitempty"` // did not start
	Error string `json:"error,omitempty"`
	// Exited: the main process has ended with this wait status.
	Exited bool  `json:"exited,omitempty"`
	Status int   `json:"status,omitempty"`
	Usage  Usage `json:"usage"`
	// Survivors are what the main process left behind, at most maxListed of them.
	Survivors []Process `json:"survivors,omitempty"`
	Total     int       `json:"total,omitempty"`
	// Empty: nothing is left of the tree.
	Empty bool `json:"empty,omitempty"`
	// Listed answers a List.
	Listed bool `json:"listed,omitempty"`
}

const (
	maxListed  = 64
	maxMessage = 16 << 20
	maxFiles   = 8
)

// conn sends and receives messages, with files, over a UNIX stream socket. Plain
// blocking calls: a wake-up through the runtime's poller costs more, and more still
// in gVisor.
type conn struct {
	fd  int
	buf []byte // read but not used
	// fds have been received and not yet taken. One read may hold two messages and the files of the second, so a
	// message says itself how many are its own; they come in the order of the messages.
	fds []int
}

// take returns the first n received files.
func (c *conn) take(n int) []int {
	n = min(n, len(c.fds))
	got := c.fds[:n:n]
	c.fds = c.fds[n:]
	return got
}

func (c *conn) send(v any, files []int) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	msg := binary.LittleEndian.AppendUint32(nil, uint32(len(b)))
	msg = append(msg, b...)
	var oob []byte
	if len(files) > 0 {
		oob = unix.UnixRights(files...)
	}
	for len(msg) > 0 {
		n, err := unix.SendmsgN(c.fd, msg, oob, nil, unix.MSG_NOSIGNAL)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		msg, oob = msg[n:], nil
	}
	return nil
}

// complete reports that a whole message has been read and not used.
func (c *conn) complete() bool {
	return len(c.buf) >= 4 && len(c.buf) >= 4+int(binary.LittleEndian.Uint32(c.buf))
}

// receive reads one message into v. The files that came with it can be taken then.
func (c *conn) receive(v any) error {
	for {
		if len(c.buf) >= 4 {
			size := int(binary.LittleEndian.Uint32(c.buf))
			if size > maxMessage {
				return fmt.Errorf("message of %d bytes", size)
			}
			if len(c.buf) >= 4+size {
				err := json.Unmarshal(c.buf[4:4+size], v)
				c.buf = append(c.buf[:0], c.buf[4+size:]...)
				return err
			}
		}
		p := make([]byte, 16<<10)
		oob := make([]byte, unix.CmsgSpace(maxFiles*4))
		n, oobn, err := blocking.Recvmsg(c.fd, p, oob, unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return io.EOF
		}
		c.buf = append(c.buf, p[:n]...)
		if oobn > 0 {
			msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
			if err != nil {
				return err
			}
			for _, m := range msgs {
				if got, err := unix.ParseUnixRights(&m); err == nil {
					c.fds = append(c.fds, got...)
				}
			}
		}
	}
}
