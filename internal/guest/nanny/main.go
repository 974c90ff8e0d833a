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
	"github.com/recluse-dev/recluse/internal/guest/privilege"
	"github.com/recluse-dev/recluse/internal/guest/proc"
)

// Arg is the first argument of the guest's binary that makes it a nanny. The second argument is the Config.
const Arg = "nanny"

// Descriptors that a nanny starts with: the socket to the guest, and with Config.Caged the files of the cage.
const (
	socketFD = 3 + iota
	procsFD
	currentFD
)

// separate reports whether the nanny's children can neither signal it nor gain capabilities that it has: they are
// another user, or root in its user namespace.
func (c Config) separate() bool { return c.Root || os.Getuid() == 0 && c.UID > 0 }

// bounding returns the capabilities that the nanny's children may have.
func (c Config) bounding() uint64 {
	if c.Root {
		return privilege.ForCode
	}
	return 0
}

// Main runs a nanny until the guest closes the socket, and then kills everything it has started.
func Main(config string) int {
	var cfg Config
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		fmt.Fprintln(os.Stderr, "nanny:", err)
		return 2
	}
	// The process mostly waits and needs no additional threads for the garbage collector.
	debug.SetGCPercent(400)
	runtime.GOMAXPROCS(2)
	score, err := openOOMScore(cfg.OOMScore)
	if err == nil {
		err = secure(cfg)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "nanny:", err)
		return 2
	}
	if cfg.separate() {
		dropHandlers()
	} else {
		resetIgnored()
	}
	KeepThreads(cfg.Threads)
	n := &nannyProcess{cfg: cfg, conn: conn{fd: socketFD}, oomScore: score, besides: newBesides()}
	if cfg.Caged {
		runtime.LockOSThread() // start traces processes for a moment
		defer runtime.UnlockOSThread()
		n.cage = &privilege.Cage{Procs: os.NewFile(procsFD, "procs"), Current: os.NewFile(currentFD, "current")}
	}
	// Starting up leaves more memory than a nanny ever needs: 5 MB in each nanny, and in every snapshot.
	debug.FreeOSMemory()
	n.serve()
	n.killTree(n.tree)
	return 0
}

// secure applies the restrictions of this process and everything it starts. They cannot be undone.
func secure(cfg Config) error {
	unix.CloseOnExec(socketFD)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a subreaper: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("make the process non-dumpable: %w", err)
	}
	// no_new_privs and the bounding set belong to a thread and are inherited by fork, and Go forks from any thread.
	if _, _, e := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e != 0 {
		return fmt.Errorf("set no_new_privs: %w", e)
	}
	if cfg.Caged {
		unix.CloseOnExec(procsFD)
		unix.CloseOnExec(currentFD)
	}
	if cfg.separate() {
		for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
			if cfg.bounding()>>c&1 == 1 {
				continue
			}
			_, _, e := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0, 0, 0, 0)
			if e == syscall.EINVAL {
				break // the kernel has no capability of this number
			}
			if e != 0 {
				return fmt.Errorf("drop capability %d from the bounding set: %w", c, e)
			}
		}
		cfg.Filter = true
	}
	if cfg.Root {
		if err := privilege.Restrict(); err != nil {
			return err
		}
	}
	// Without a filter this is backend local, which confines nothing, as its documentation states.
	if cfg.Filter {
		if err := confine(cfg); err != nil {
			return err
		}
	}
	limits := map[int]uint64{unix.RLIMIT_CORE: 0}
	if cfg.Processes > 0 && !cfg.Caged {
		limits[unix.RLIMIT_NPROC] = uint64(cfg.Processes)
	}
	if cfg.OpenFiles > 0 {
		limits[unix.RLIMIT_NOFILE] = uint64(cfg.OpenFiles)
	}
	for what, n := range limits {
		// Setrlimit of package syscall, not of x/sys: it prevents the runtime from restoring the old limit on exec.
		if err := syscall.Setrlimit(what, &syscall.Rlimit{Cur: n, Max: n}); err != nil {
			return fmt.Errorf("set resource limit %d: %w", what, err)
		}
	}
	return nil
}

type nannyProcess struct {
	cfg      Config
	conn     conn
	oomScore *oomScore // of the processes it starts; nil: unchanged
	cage     *privilege.Cage
	besides  *besides

	sendMu sync.Mutex

	// treeMu is held while the processes of a tree are listed and signalled, so that a signal for one tree cannot hit
	// the next.
	treeMu sync.Mutex
	tree   int // guarded by treeMu; number of the current or last tree; only serve changes it

	mu   sync.Mutex
	main int // guarded by mu; pid of the main process; 0: not running
}

func (n *nannyProcess) send(e *Event) {
	n.sendMu.Lock()
	defer n.sendMu.Unlock()
	if err := n.conn.send(e, nil); err != nil {
		// The guest has gone. The loop in serve notices, too, and returns.
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
		case req.Beside != nil:
			n.startBeside(req.Beside, n.conn.take(req.Beside.Files))
		case req.List:
			n.list()
		case req.Tell:
			n.sendMain()
		case len(req.Kill) > 0:
			n.killThese(req.Kill)
		case req.Signal != 0 && req.Of != n.tree:
			// The signal is for an earlier tree.
		case req.Signal != 0 && req.Tree && req.Signal == int(unix.SIGKILL):
			go n.killTree(n.tree) // a fork bomb can make this last; other requests must not wait
		case req.Signal != 0 && req.Tree:
			n.signalTree(unix.Signal(req.Signal))
		case req.Signal != 0:
			n.signalMain(unix.Signal(req.Signal), req.Group)
		}
	}
}

// attributes returns how the process of s starts, with these descriptors.
func (n *nannyProcess) attributes(s *Start, fds []int) *syscall.ProcAttr {
	// The process gets its own group in our session, and its own session only with a terminal. Alone in its session,
	// the group would be orphaned, and gVisor sends SIGHUP to an orphaned group whenever one of its processes ends
	// while another is stopped. The guest stops processes for a moment when memory is short.
	attr := &syscall.ProcAttr{Dir: string(s.Dir), Sys: &syscall.SysProcAttr{Setsid: s.TTY, Setpgid: !s.TTY}}
	for _, e := range s.Env {
		attr.Env = append(attr.Env, string(e))
	}
	for _, fd := range fds {
		attr.Files = append(attr.Files, uintptr(fd))
	}
	if s.TTY {
		attr.Sys.Setctty, attr.Sys.Ctty = true, 0
	}
	user := User{UID: n.cfg.UID, GID: n.cfg.GID}
	if s.User != nil {
		user = *s.User
	}
	if user.UID >= 0 {
		// Without supplementary groups.
		attr.Sys.Credential = &syscall.Credential{Uid: uint32(user.UID), Gid: uint32(user.GID)}
	}
	return attr
}

func (n *nannyProcess) start(s *Start, fds []int) {
	attr := n.attributes(s, fds)
	for _, fd := range fds {
		defer unix.Close(fd)
	}
	n.treeMu.Lock()
	n.tree++
	n.oomScore.raise(s.Spared)
	pid, err := n.fork(string(s.Path), s.args(), attr)
	n.oomScore.restore()
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
	n.besides.startMu.Lock()
	n.besides.running = true
	n.besides.startMu.Unlock()
	go n.reap(pid)
}

// fork starts a process, inside the cage if there is one. The process is traced, so that it stops before its first
// instruction and cannot fork before it is inside.
//
// Preconditions: with a cage, the goroutine is locked to its thread, which becomes the tracer for a moment.
func (n *nannyProcess) fork(path string, argv []string, attr *syscall.ProcAttr) (pid int, err error) {
	if n.cage == nil {
		return syscall.ForkExec(path, argv, attr)
	}
	attr.Sys.Ptrace = true
	if pid, err = syscall.ForkExec(path, argv, attr); err != nil {
		return 0, err
	}
	var ws unix.WaitStatus
	for {
		if _, err = blocking.Wait4(pid, &ws, unix.WALL, nil); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	switch {
	case err != nil:
	case !ws.Stopped(): // it was killed meanwhile
		err = syscall.ESRCH
	default:
		if err = n.cage.Enter(pid); err == nil {
			err = unix.PtraceDetach(pid)
		}
	}
	if err != nil {
		signal(pid, unix.SIGKILL)
		_, _ = unix.Wait4(pid, &ws, unix.WALL, nil) // it may have been reaped above
		return 0, err
	}
	return pid, nil
}

// sendMain reports the main process.
func (n *nannyProcess) sendMain() {
	n.mu.Lock()
	defer n.mu.Unlock() // reap locks mu before it reports the end, so this event cannot follow that report
	if n.main != 0 {
		n.send(&Event{PID: n.main})
	}
}

// reap waits until the whole tree has ended, and reports its end and that of the main process.
func (n *nannyProcess) reap(main int) {
	var cpu, peak int64
	for {
		var ws unix.WaitStatus
		var ru unix.Rusage
		pid, err := blocking.Wait4(-1, &ws, unix.WALL, &ru)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil { // ECHILD: no child is left
			if n.over() {
				break
			}
			time.Sleep(killPause)
			continue
		}
		if n.observe(pid, ws) {
			continue
		}
		cpu += ru.Utime.Nano() + ru.Stime.Nano()
		peak = max(peak, ru.Maxrss<<10)
		if pid != main {
			continue
		}
		n.mu.Lock()
		n.main = 0
		n.mu.Unlock()
		e := &Event{PID: main, Exited: true, Status: int(ws)}
		empty := n.reapDead(&cpu, &peak) && n.over()
		if empty {
			e.Empty = true
		} else {
			e.Survivors, e.Total = survivors()
		}
		e.Usage = Usage{CPUNanos: cpu, MaxRSS: peak}
		n.send(e)
		if empty {
			return
		}
	}
	n.send(&Event{Empty: true, Usage: Usage{CPUNanos: cpu, MaxRSS: peak}})
}

// reapDead reaps the children that have already ended, and reports whether no child is left.
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
		if n.observe(pid, ws) {
			continue
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

// list reports all processes below the nanny except the main process.
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
	defer n.mu.Unlock() // reap locks mu before it records the end of the process
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

// killPause is the time between two rounds of killTree.
const killPause = time.Millisecond

// killTree kills everything below the nanny while tree is the current tree; see the package comment.
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

// each calls f for each process of a tree, and reports whether there was one.
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

// signal sends a signal. It ignores errors, because the process may have ended meanwhile.
func signal(pid int, s unix.Signal) { _ = unix.Kill(pid, s) }

// DescribeStartError returns the exit code and the message that a shell has for the error of a start.
func DescribeStartError(name string, errno int) (code int, text string) {
	e := syscall.Errno(errno)
	switch e {
	case syscall.ENOENT, syscall.ENOTDIR:
		return 127, name + ": not found"
	case syscall.EACCES, syscall.ENOEXEC, syscall.EPERM, syscall.EISDIR, syscall.ELOOP:
		return 126, name + ": " + e.Error()
	}
	return 126, strings.TrimSpace(name + ": " + e.Error())
}
