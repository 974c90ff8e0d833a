//go:build linux

package nanny

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/blocking"
	"github.com/recluse-dev/recluse/internal/guest/proc"
)

// Arg is the first argument that turns the guest's binary into a nanny; the second is its Config.
const Arg = "nanny"

// socketFD is where the nanny finds the guest.
const socketFD = 3

// Main runs a nanny until the guest closes the socket, and then kills whatever it has started.
func Main(config string) int {
	var cfg Config
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		fmt.Fprintln(os.Stderr, "nanny:", err)
		return 2
	}
	// A process whose only work is to wait needs no second thread for the collector.
	debug.SetGCPercent(400)
	runtime.GOMAXPROCS(2)
	score, err := openBadness(cfg.OOMScore)
	if err == nil {
		err = secure(cfg)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "nanny:", err)
		return 2
	}
	if os.Getuid() == 0 && cfg.UID > 0 {
		dropHandlers()
	} else {
		heedIgnored()
	}
	KeepThreads(cfg.Threads)
	n := &nannyProcess{cfg: cfg, conn: conn{fd: socketFD}, badness: score}
	// What starting up has left is more than a nanny ever needs: 5 MB in each, and in every snapshot.
	debug.FreeOSMemory()
	n.serve()
	n.killTree(n.tree)
	return 0
}

// secure gives this process, and so everything it starts, what it may not get rid of.
func secure(cfg Config) error {
	unix.CloseOnExec(socketFD)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a subreaper: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("become unreadable: %w", err)
	}
	// These two belong to a thread and are inherited by fork, and Go forks from any.
	if _, _, e := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e != 0 {
		return fmt.Errorf("set no_new_privs: %w", e)
	}
	if os.Getuid() == 0 && cfg.UID > 0 {
		for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
			_, _, e := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0, 0, 0, 0)
			if e == syscall.EINVAL {
				break // the kernel knows no capability of this number
			}
			if e != 0 {
				return fmt.Errorf("drop capability %d from the bounding set: %w", c, e)
			}
		}
		cfg.Filter = true
	}
	// Otherwise this is package local, which does not confine anything and documents that.
	if cfg.Filter {
		if err := confine(); err != nil {
			return err
		}
	}
	limits := map[int]uint64{unix.RLIMIT_CORE: 0}
	if cfg.Processes > 0 {
		limits[unix.RLIMIT_NPROC] = uint64(cfg.Processes)
	}
	if cfg.OpenFiles > 0 {
		limits[unix.RLIMIT_NOFILE] = uint64(cfg.OpenFiles)
	}
	for what, n := range limits {
		// syscall's, not x/sys's: this one tells the runtime not to put its own back on exec.
		if err := syscall.Setrlimit(what, &syscall.Rlimit{Cur: n, Max: n}); err != nil {
			return fmt.Errorf("set resource limit %d: %w", what, err)
		}
	}
	return nil
}

type nannyProcess struct {
	cfg     Config
	conn    conn
	badness *badness // of what it starts; nil: left alone

	sendMu sync.Mutex

	// treeMu is held while a tree is looked at and signalled, so that nothing is meant for one tree and hits the next.
	treeMu sync.Mutex
	tree   int // guarded by treeMu; number of the present tree, or of the last one; only serve changes it

	mu   sync.Mutex
	main int // guarded by mu; pid of the main process, 0 before and after
}

func (n *nannyProcess) send(e *Event) {
	n.sendMu.Lock()
	defer n.sendMu.Unlock()
	if err := n.conn.send(e, nil); err != nil {
		// The guest has gone. Main's loop sees that, too, and ends.
		return
	}
}

func (n *nannyProcess) serve() {
	for {
		var req request
		if n.conn.receive(&req) != nil {
			return
		}
		switch {
		case req.Start != nil:
			n.start(req.Start, n.conn.take(req.Start.Files))
		case req.List:
			n.list()
		case req.Tell:
			n.tell()
		case len(req.Kill) > 0:
			n.killThese(req.Kill)
		case req.Signal != 0 && req.Of != n.tree:
			// Its tree has ended and this is the next one.
		case req.Signal != 0 && req.Tree && req.Signal == int(unix.SIGKILL):
			go n.killTree(n.tree) // may last as long as a fork bomb resists; other requests go on
		case req.Signal != 0 && req.Tree:
			n.signalTree(unix.Signal(req.Signal))
		case req.Signal != 0:
			n.signalMain(unix.Signal(req.Signal), req.Group)
		}
	}
}

func (n *nannyProcess) start(s *Start, fds []int) {
	// A group of its own in our session, and a session only with a terminal: alone in its session the group would be an orphan, and
	// gVisor sends an orphaned group SIGHUP whenever one of it ends while another one is stopped. The guest stops processes for
	// a moment when memory is short.
	attr := &syscall.ProcAttr{Dir: string(s.Dir), Sys: &syscall.SysProcAttr{Setsid: s.TTY, Setpgid: !s.TTY}}
	for _, e := range s.Env {
		attr.Env = append(attr.Env, string(e))
	}
	for _, fd := range fds {
		attr.Files = append(attr.Files, uintptr(fd))
		defer unix.Close(fd)
	}
	if s.TTY {
		attr.Sys.Setctty, attr.Sys.Ctty = true, 0
	}
	user := User{UID: n.cfg.UID, GID: n.cfg.GID}
	if s.User != nil {
		user = *s.User
	}
	if user.UID >= 0 {
		attr.Sys.Credential = &syscall.Credential{Uid: uint32(user.UID), Gid: uint32(user.GID)} // and no other groups
	}
	argv := make([]string, len(s.Argv))
	for i, a := range s.Argv {
		argv[i] = string(a)
	}
	n.treeMu.Lock()
	n.tree++
	n.badness.offer(s.Spared)
	pid, err := syscall.ForkExec(string(s.Path), argv, attr)
	n.badness.withdraw()
	n.treeMu.Unlock()
	if err != nil {
		e := &Event{Error: err.Error(), Errno: int(syscall.EINVAL)}
		if no, ok := errors.AsType[syscall.Errno](err); ok {
			e.Errno = int(no)
		}
		n.send(e)
		return
	}
	n.mu.Lock()
	n.main = pid
	n.mu.Unlock()
	if !s.Mute {
		n.send(&Event{PID: pid})
	}
	go n.reap(pid)
}

// tell reports the main process.
func (n *nannyProcess) tell() {
	n.mu.Lock()
	defer n.mu.Unlock() // reap takes it before it reports the end, so this cannot be sent after that
	if n.main != 0 {
		n.send(&Event{PID: n.main})
	}
}

// reap waits for the whole tree.
func (n *nannyProcess) reap(main int) {
	var sofar, peak int64
	for {
		var ws unix.WaitStatus
		var ru unix.Rusage
		pid, err := blocking.Wait4(-1, &ws, unix.WALL, &ru)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil { // ECHILD: no child is left
			break
		}
		sofar += ru.Utime.Nano() + ru.Stime.Nano()
		peak = max(peak, ru.Maxrss<<10)
		if pid != main {
			continue
		}
		n.mu.Lock()
		n.main = 0
		n.mu.Unlock()
		e := &Event{PID: main, Exited: true, Status: int(ws)}
		empty := n.reapDead(&sofar, &peak)
		if empty {
			e.Empty = true
		} else {
			e.Survivors, e.Total = survivors()
		}
		e.Usage = Usage{CPUNanos: sofar, MaxRSS: peak}
		n.send(e)
		if empty {
			return
		}
	}
	n.send(&Event{Empty: true, Usage: Usage{CPUNanos: sofar, MaxRSS: peak}})
}

// reapDead takes the children that have ended already and reports whether none is left.
func (n *nannyProcess) reapDead(cpu, peak *int64) (none bool) {
	for {
		var ws unix.WaitStatus
		var ru unix.Rusage
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG|unix.WALL, &ru)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return true
		}
		if pid == 0 {
			return false
		}
		*cpu += ru.Utime.Nano() + ru.Stime.Nano()
		*peak = max(*peak, ru.Maxrss<<10)
	}
}

func survivors() ([]Process, int) {
	all, err := proc.Descendants(os.Getpid())
	if err != nil {
		return nil, 0
	}
	total := len(all)
	out := make([]Process, 0, min(total, maxListed))
	for _, p := range all[:min(total, maxListed)] {
		out = append(out, Process{PID: p.PID, PPID: p.PPID, Start: p.Start, Command: proc.Command(p)})
	}
	return out, total
}

// list reports everything below us but the main process itself.
func (n *nannyProcess) list() {
	n.mu.Lock()
	main := n.main
	n.mu.Unlock()
	e := &Event{Listed: true}
	all, err := proc.Descendants(os.Getpid())
	if err != nil {
		e.Error = err.Error()
	}
	all = slices.DeleteFunc(all, func(p proc.Process) bool { return p.PID == main })
	e.Total = len(all)
	for i, p := range all {
		row := Process{PID: p.PID, PPID: p.PPID, Start: p.Start}
		if i < maxListed {
			row.Command = proc.Command(p)
		}
		e.Survivors = append(e.Survivors, row)
	}
	n.send(e)
}

func (n *nannyProcess) killThese(these []Process) {
	for _, k := range these {
		if p, ok := proc.Get(k.PID); ok && p.Start == k.Start {
			signal(k.PID, unix.SIGKILL)
		}
	}
}

func (n *nannyProcess) signalMain(s unix.Signal, group bool) {
	n.mu.Lock()
	defer n.mu.Unlock() // reap takes it to record that the process has gone
	if n.main == 0 {
		return
	}
	if group {
		signal(-n.main, s)
	}
	signal(n.main, s)
}

func (n *nannyProcess) signalTree(s unix.Signal) {
	all, err := proc.Descendants(os.Getpid())
	if err != nil {
		n.signalMain(s, true)
		return
	}
	for _, p := range all {
		signal(p.PID, s)
	}
}

// Between two looks at the table while a tree is being ended.
const killPause = time.Millisecond

// killTree ends everything below us, as long as that is the tree meant; see the package comment.
func (n *nannyProcess) killTree(tree int) {
	stopped := map[Process]bool{}
	for range 50 {
		fresh := false
		n.each(tree, func(p proc.Process) {
			key := Process{PID: p.PID, Start: p.Start}
			if !stopped[key] {
				stopped[key], fresh = true, true
				signal(p.PID, unix.SIGSTOP)
			}
		})
		if !fresh {
			break
		}
	}
	for n.each(tree, func(p proc.Process) { signal(p.PID, unix.SIGKILL) }) {
		time.Sleep(killPause)
	}
}

// each calls f for everything of a tree and reports whether there was anything.
func (n *nannyProcess) each(tree int, f func(proc.Process)) bool {
	n.treeMu.Lock()
	defer n.treeMu.Unlock()
	if n.tree != tree {
		return false
	}
	all, err := proc.Descendants(os.Getpid())
	if err != nil {
		return false
	}
	for _, p := range all {
		f(p)
	}
	return len(all) > 0
}

// signal sends; a process that has gone in the meantime is no failure.
func signal(pid int, s unix.Signal) { _ = unix.Kill(pid, s) }

// Describe names a start error the way a shell does, with its exit code.
func Describe(name string, errno int) (code int, text string) {
	e := syscall.Errno(errno)
	switch e {
	case syscall.ENOENT, syscall.ENOTDIR:
		return 127, name + ": not found"
	case syscall.EACCES, syscall.ENOEXEC, syscall.EPERM, syscall.EISDIR, syscall.ELOOP:
		return 126, name + ": " + e.Error()
	}
	return 126, strings.TrimSpace(name + ": " + e.Error())
}
