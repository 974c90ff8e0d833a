//go:build linux

package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	programs "github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/fifo"
	"github.com/recluse-dev/recluse/internal/guest/agent"
	"github.com/recluse-dev/recluse/internal/statefile"
	"github.com/recluse-dev/recluse/sandbox"
)

const (
	// deathWait is how long a sandbox that has let go of its pipes may take to end.
	deathWait = time.Second
	// settleAfter is how long a new sandbox is left to itself before its processes are moved between cgroups.
	settleAfter = 100 * time.Millisecond
)

// machine is one attached sandbox.
type machine struct {
	backend *Backend
	record  *record
	engine  *engine
	stream  *fifo.Stream
	lock    *statefile.Lock // held while we are attached
	pid     int
	pidfd   *os.File
	kills   *killCounter // nil without cgroups

	gone    chan struct{}
	ended   atomic.Bool   // the sandbox no longer holds its end of the pipes
	settled chan struct{} // closed when its limits hold, or never will; nil: they hold
	hurry   chan struct{} // closed by hasten
	hasten  func()        // somebody waits for settled
	letGo   sync.Once     // release

	mu     sync.Mutex
	ending bool  // guarded by mu; we are ending it ourselves
	cause  error // guarded by mu
	closed bool  // guarded by mu

	killsMu sync.Mutex
	seen    uint64    // guarded by killsMu; the kernel's memory kills, at the last look
	seenAt  time.Time // guarded by killsMu; when the last of them was first seen
}

// open attaches to a sandbox that runs.
func (b *Backend) open(r *record, e *engine, lock *statefile.Lock) (*machine, error) {
	lost := func(err error) error {
		return &sandbox.Error{Code: sandbox.CodeSandboxLost, Op: "attach", Message: "sandbox " + r.ID + " has ended", Err: err, Remedy: "make a new one, or restore a snapshot"}
	}
	st, err := e.state(r.ID)
	if err != nil {
		return nil, lost(err)
	}
	fd, err := st.pidfd()
	if err != nil {
		return nil, lost(err)
	}
	s, err := fifo.Open(b.sandboxDir(r.ID))
	if err == nil {
		err = unix.SetNonblock(fd, true) // so that the runtime's poller takes it
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, lost(err)
	}
	m := &machine{
		backend: b, record: r, engine: e, stream: s, lock: lock, pid: st.Sandbox.Pid,
		pidfd: os.NewFile(uintptr(fd), "pidfd"), gone: make(chan struct{}),
	}
	var unsettled *cgroup
	if host, _ := b.limits(); host != nil && r.Cgroup {
		group := host.open(r.ID)
		m.kills, _ = group.kills() // without them a kill is told as one by a signal
		if m.kills != nil {
			m.seen, _ = m.kills.count() // those of before tell nothing about a later end
		}
		if !group.settled() { // it is new, or whoever started it has died before it was done
			unsettled = group
			m.settled, m.hurry = make(chan struct{}), make(chan struct{})
			m.hasten = sync.OnceFunc(func() { close(m.hurry) })
		}
	}
	b.mu.Lock()
	b.machines[r.ID] = m
	b.mu.Unlock()
	go m.watch()
	if unsettled != nil {
		go m.settle(unsettled)
	}
	return m, nil
}

// watch notices the end of the sandbox, or that we have let go of it.
func (m *machine) watch() {
	defer close(m.gone)
	conn, err := m.pidfd.SyscallConn()
	if err != nil {
		return
	}
	// Readable when the process has ended; closing the descriptor ends the wait as well.
	err = conn.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 && err == nil
	})
	if err != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ending && !m.closed && m.cause == nil {
		_ = conn.Control(func(fd uintptr) { m.cause = m.diagnose(int(fd)) })
	}
	_ = m.stream.Close() // wakes whoever waits for the guest
}

// diagnose says why the sandbox ended by itself.
func (m *machine) diagnose(fd int) error {
	e := &sandbox.Error{Code: sandbox.CodeSandboxLost, Op: "watch sandbox", Remedy: "make a new one, or restore a snapshot"}
	if m.killedForMemory() {
		e.Message = "the host's kernel ended the sandbox for memory"
		return e
	}
	said := fifo.Complaints(m.backend.sandboxDir(m.record.ID))
	switch code, ok := exitOf(fd, m.pid); {
	case !ok:
		e.Message = fmt.Sprintf("the sandbox's process %d has ended", m.pid)
	case syscall.WaitStatus(code).Signaled():
		e.Message = fmt.Sprintf("the sandbox's process %d was killed by %s", m.pid, unix.SignalName(syscall.WaitStatus(code).Signal()))
	case syscall.WaitStatus(code).ExitStatus() == engineFailed:
		e.Message = fmt.Sprintf("the sandbox's process %d gave up", m.pid)
	default:
		e.Code = sandbox.CodeGuestLost
		e.Message = "the guest in the sandbox " + guestEnd(syscall.WaitStatus(code).ExitStatus()) + ", and the sandbox with it"
	}
	if said != "" {
		e.Err = errors.New(said)
	}
	return e
}

// engineFailed is the exit status of an engine that cannot go on. With any other it tells how the guest ended, as a shell does.
const engineFailed = 128

// guestEnd says how the guest ended.
func guestEnd(status int) string {
	if status > engineFailed {
		return "was killed by " + unix.SignalName(syscall.Signal(status-engineFailed))
	}
	return fmt.Sprintf("ended with exit status %d", status)
}

// exitOf asks the kernel how a process ended that is not our child. It tells while nobody has reaped the process, and from Linux 6.15 on also later.
func exitOf(fd, pid int) (status int, ok bool) {
	const (
		pidfdGetInfo  = 0xC040FF0B // _IOWR(0xFF, 11, struct pidfd_info), 64 bytes
		pidfdInfoExit = 1 << 3
	)
	for range 20 { // it may be reaped between the two looks
		if status, ok := zombieExit(fd, pid); ok {
			return status, true
		}
		info := struct {
			mask, cgroup uint64
			ids          [11]uint32
			exit         int32
		}{mask: pidfdInfoExit}
		_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
		if e == 0 && info.mask&pidfdInfoExit != 0 {
			return int(info.exit), true
		}
		if e != 0 && e != unix.ESRCH {
			return 0, false
		}
		time.Sleep(5 * time.Millisecond)
	}
	return 0, false
}

// zombieExit reads how a process ended that nobody has reaped yet: an init may take its time.
func zombieExit(fd, pid int) (status int, ok bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// "pid (name) state ...", where the name may hold anything; the last field is the status.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 2 || fields[0] != "Z" {
		return 0, false
	}
	status, err = strconv.Atoi(fields[len(fields)-1])
	// As long as it can be signalled its pid is nobody else's, so it was the one we have read about. The kernel says 0 to those who may not know.
	return status, err == nil && status != 0 && unix.PidfdSendSignal(fd, 0, nil, 0) == nil
}

// settle sees to the limits that would slow a start down, and the first calls as well: it uses more than one processor, and while
// processes are moved between cgroups nothing on the machine can fork. They hold a moment later. A sandbox that cannot have them is ended.
func (m *machine) settle(group *cgroup) {
	defer close(m.settled)
	select {
	case <-time.After(m.backend.settleAfter):
	case <-m.hurry:
	case <-m.gone:
	}
	if m.isEnding() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), bootWait)
	defer cancel()
	err := m.separate(ctx, group)
	if err == nil {
		err = group.limit(cgroupLimits{cpus: m.record.Spec.Limits.CPUs})
	}
	if err == nil {
		return
	}
	if m.exited() {
		return // that is why, and watch tells it better
	}
	m.mu.Lock()
	over := m.ending || m.closed
	if !over {
		m.cause = startError(fmt.Errorf("limits: %w", err))
	}
	m.mu.Unlock()
	if st, err := m.engine.state(m.record.ID); err == nil && !over {
		_ = st.kill(ctx) // watch tells
	}
}

// exited reports whether the sandbox's process has ended, watch may not have noticed yet, or whether we have let go of it.
func (m *machine) exited() bool {
	conn, err := m.pidfd.SyscallConn()
	if err != nil {
		return true
	}
	ended := false
	err = conn.Control(func(fd uintptr) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		ended = n > 0 && err == nil
	})
	return ended || err != nil
}

// separate puts the processes of commands apart from sentry and guest; see cgroup_linux.go.
func (m *machine) separate(ctx context.Context, group *cgroup) error {
	const name = "/" + programs.GuestName
	for {
		for _, pid := range descendants(m.pid) {
			if mapsFile(pid, name) {
				return group.adopt(m.pid, name)
			}
		}
		select {
		case <-m.gone:
			return m.Cause()
		case <-ctx.Done():
			return fmt.Errorf("the guest's process did not appear: %w", context.Cause(ctx))
		case <-time.After(time.Millisecond):
		}
	}
}

// stopping says that the end which comes is ours.
func (m *machine) stopping() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ending = true
}

func (m *machine) isEnding() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ending
}

// abandon lets go of the sandbox, alive or not. Whoever asks has been heard when it returns, whether or not he was the first.
func (m *machine) abandon() { m.letGo.Do(m.release) }

func (m *machine) release() {
	if m.ended.Load() || m.exited() {
		// The other end of the pipes has gone, so the process has ended or is about to: let watch find out why.
		select {
		case <-m.gone:
		case <-time.After(deathWait):
		}
	}
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	if m.settled != nil {
		m.hasten()
		<-m.settled // it may live on without us, but not without its limits
	}
	_ = m.pidfd.Close()
	<-m.gone
	_ = m.stream.Close()
	m.lock.Release()
	if m.kills != nil {
		m.kills.close()
	}
	m.backend.mu.Lock()
	defer m.backend.mu.Unlock()
	if m.backend.machines[m.record.ID] == m {
		delete(m.backend.machines, m.record.ID)
	}
}

// ID implements sandbox.Machine.
func (m *machine) ID() string { return m.record.ID }

// Spec implements sandbox.Machine.
func (m *machine) Spec() sandbox.Spec { return m.record.Spec }

// Stream implements sandbox.Machine.
func (m *machine) Stream() io.ReadWriteCloser { return attachment{m} }

// attachment is the stream as the host's client sees it: closing it lets go of the sandbox.
type attachment struct{ m *machine }

func (a attachment) Read(p []byte) (int, error) {
	n, err := a.m.stream.Read(p)
	if errors.Is(err, io.EOF) {
		a.m.ended.Store(true)
	}
	return n, err
}

func (a attachment) Write(p []byte) (int, error) {
	n, err := a.m.stream.Write(p)
	if errors.Is(err, unix.EPIPE) { // whoever writes may be the first to notice
		a.m.ended.Store(true)
	}
	return n, err
}

// SetWriteDeadline lets a call that cannot be sent be given up.
func (a attachment) SetWriteDeadline(t time.Time) error { return a.m.stream.SetWriteDeadline(t) }

func (a attachment) Close() error {
	_ = a.m.stream.Close() // at once: somebody may be waiting in Read
	a.m.abandon()
	return nil
}

// Token implements sandbox.Machine.
func (m *machine) Token() []byte { return m.record.token() }

// Generation implements sandbox.Machine.
func (m *machine) Generation() string { return m.record.Generation }

// Gone implements sandbox.Machine.
func (m *machine) Gone() <-chan struct{} { return m.gone }

// Cause implements sandbox.Machine.
func (m *machine) Cause() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cause
}

// MemoryKills implements sandbox.Machine. The guest tells of those it killed itself; these are the kernel's.
func (m *machine) MemoryKills() (uint64, bool) {
	if m.kills == nil {
		return 0, false
	}
	n, err := m.kills.count()
	if err != nil {
		return 0, false
	}
	m.killsMu.Lock()
	defer m.killsMu.Unlock()
	if n > m.seen {
		m.seen, m.seenAt = n, time.Now()
	}
	return n, true
}

// freshKill is how long after a kill was counted the end of the sandbox may still be its effect: a command that begins between the two
// looks at the count as well.
const freshKill = time.Second

// killedForMemory reports whether the kernel has killed something since the last look, which was not about the end of the sandbox.
func (m *machine) killedForMemory() bool {
	if m.kills == nil {
		return false
	}
	n, err := m.kills.count()
	if err != nil {
		return false
	}
	m.killsMu.Lock()
	defer m.killsMu.Unlock()
	return n > m.seen || !m.seenAt.IsZero() && time.Since(m.seenAt) < freshKill
}

// lock makes sure that nobody else talks to the guest of the sandbox in dir.
func (b *Backend) lock(dir string, patience time.Duration) (*statefile.Lock, error) {
	l, err := statefile.Acquire(filepath.Join(dir, "attached"), patience)
	if err != nil {
		return nil, startError(err)
	}
	return l, nil
}

func newID() string { return "s" + statefile.Random(6) }

func encodeConfig(c agent.Config) (string, error) {
	b, err := json.Marshal(c)
	return string(b), err
}
