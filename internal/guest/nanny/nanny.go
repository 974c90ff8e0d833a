//go:build linux

// Package nanny runs one process tree and can end all of it.
//
// A process can leave its process group, its session and its parent, but not the nearest subreaper above it: when its
// parent dies, the kernel makes the subreaper its parent. So every command and interpreter is started by a small
// process of the guest that is a subreaper, the nanny. Every process below the nanny was started by the command or by
// its descendants, however often they forked and whatever signals they ignore. This works on every Linux and in gVisor,
// and needs no capability.
//
// Ending a tree races with its forks. The nanny first stops every process it finds until it finds no new one, so that
// the number of processes can no longer grow. Then it kills until no child is left. Both loops read the process table
// again in each round. A pid is signalled only while it is below the nanny, and only the nanny reaps it there, so the
// pid cannot have been reused for another process.
//
// Starting a nanny means starting the guest's binary. So a nanny is kept, and runs the next command as soon as the last
// one has left no process. A signal may be in transit at that moment; therefore each signal carries the number of its
// tree, and a signal for an earlier tree is dropped.
package nanny

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/blocking"
	"github.com/recluse-dev/recluse/internal/guest/privilege"
)

// Start describes a process to start. The files sent with it become fds 0, 1, 2, …
type Start struct {
	Argv [][]byte `json:"argv"`
	Path []byte   `json:"path"`
	Env  [][]byte `json:"env"`
	Dir  []byte   `json:"dir"`
	// TTY makes fd 0 the controlling terminal of a new session.
	TTY bool `json:"tty,omitempty"`
	// Mute suppresses the event for a successful start. Its end or a failed start is reported; see Nanny.Begin.
	Mute bool `json:"mute,omitempty"`
	// Spared marks a process whose loss costs more than that of others, such as an interpreter: the OOM killer prefers
	// the others.
	Spared bool `json:"spared,omitempty"`
	// User is the user of the process; nil: that of Config. Only a nanny that runs as root can switch.
	User *User `json:"user,omitempty"`
	// Files is the number of files sent with the request; set by Nanny.Begin.
	Files int `json:"files"`
}

func (s *Start) args() []string {
	argv := make([]string, len(s.Argv))
	for i, a := range s.Argv {
		argv[i] = string(a)
	}
	return argv
}

// User is the user and the group of a process.
type User struct {
	UID int `json:"uid"`
	GID int `json:"gid"`
}

// Config is the configuration of a nanny, passed at its start. Everything it starts inherits it.
type Config struct {
	UID       int  `json:"uid"` // of the processes it starts; -1: that of the nanny
	GID       int  `json:"gid"`
	Processes int  `json:"processes,omitempty"` // RLIMIT_NPROC; 0: unchanged
	OpenFiles int  `json:"open_files,omitempty"`
	Threads   int  `json:"threads,omitempty"`   // threads to create at the start; see KeepThreads
	OOMScore  int  `json:"oom_score,omitempty"` // oom_score_adj of the processes it starts; 0: unchanged
	Filter    bool `json:"filter,omitempty"`    // install the system call filter even if the user is not switched
	NoPing    bool `json:"no_ping,omitempty"`   // the filter also denies ping sockets
	Root      bool `json:"root,omitempty"`      // code may be root; see package privilege
	Spared    int  `json:"spared,omitempty"`    // with Root: an id that code cannot become; 0: none
	Caged     bool `json:"caged,omitempty"`     // set by Spawn if there is a Cage

	// Cage bounds the number of processes instead of Processes; nil: none.
	Cage *privilege.Cage `json:"-"`
}

// Process is one process of a tree.
type Process struct {
	PID     int    `json:"pid"`
	PPID    int    `json:"ppid"`
	Start   uint64 `json:"start"`
	Command string `json:"command,omitempty"`
}

// Usage is the resource usage of the processes reaped so far.
type Usage struct {
	CPUNanos int64 `json:"cpu_ns"`
	MaxRSS   int64 `json:"max_rss"`
}

// request is a message from the guest to the nanny.
type request struct {
	Start  *Start    `json:"start,omitempty"`
	Beside *Start    `json:"beside,omitempty"` // start this process, too, for another one of the tree
	Signal int       `json:"signal,omitempty"` // send this signal to the main process
	Of     int       `json:"of,omitempty"`     // with Signal: the number of the tree, counted in the order of starts
	Group  bool      `json:"group,omitempty"`  // with Signal: also to its process group
	Tree   bool      `json:"tree,omitempty"`   // with Signal: to the whole tree; SIGKILL repeats until it is empty
	List   bool      `json:"list,omitempty"`
	Tell   bool      `json:"tell,omitempty"` // report the main process, if it still runs
	Kill   []Process `json:"kill,omitempty"` // kill these processes, if pid and start time still match
}

// Event is a message from the nanny to the guest.
type Event struct {
	PID   int    `json:"pid,omitempty"`   // of the main process, which has started
	Errno int    `json:"errno,omitempty"` // the start failed
	Error string `json:"error,omitempty"`
	// Exited means that the main process has ended with wait status Status.
	Exited bool  `json:"exited,omitempty"`
	Status int   `json:"status,omitempty"`
	Usage  Usage `json:"usage"`
	// Survivors are the processes that the main process left running, at most maxListed of them.
	Survivors []Process `json:"survivors,omitempty"`
	Total     int       `json:"total,omitempty"`
	// Empty means that no process of the tree is left.
	Empty bool `json:"empty,omitempty"`
	// Listed marks the answer to a List request.
	Listed bool `json:"listed,omitempty"`
}

const (
	maxListed  = 64
	maxMessage = 16 << 20
	maxFiles   = 8
)

// conn sends and receives messages, with files, over a UNIX stream socket. It uses blocking system calls, because a
// wake-up through the poller of the Go runtime costs more, especially in gVisor.
type conn struct {
	fd  int
	buf []byte // received and not yet decoded
	// fds are received files that take has not returned yet. One read may return two messages and the files of the
	// second, so each message carries the number of its files. Files arrive in the order of their messages.
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

// complete reports whether buf holds a complete message.
func (c *conn) complete() bool {
	return len(c.buf) >= 4 && len(c.buf) >= 4+int(binary.LittleEndian.Uint32(c.buf))
}

// receive reads one message into v. Then take returns the files that came with it.
func (c *conn) receive(v any) error {
	for {
		if len(c.buf) >= 4 {
			size := int(binary.LittleEndian.Uint32(c.buf))
			if size > maxMessage {
				return fmt.Errorf("invalid message size %d", size)
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
