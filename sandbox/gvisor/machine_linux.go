//go:build linux

package gvisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/backendkit"
	programs "github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/fifo"
	"github.com/recluse-dev/recluse/internal/filelock"
	"github.com/recluse-dev/recluse/internal/pidfd"
)

const (
	// deathWait is how long a sandbox that has let go of its pipes may take to end.
	deathWait = time.Second
	// settleAfter is how long a new sandbox is left to itself before its processes are moved between cgroups.
	settleAfter = 100 * time.Millisecond
)

// machine is one attached sandbox.
type machine struct {
	*backendkit.Machine
	backend *Backend
	record  *record
	engine  *engine
	stream  *fifo.Stream
	lock    *filelock.Lock // held while we are attached
	process *pidfd.Process // the sandbox's

	lost    atomic.Bool   // the sandbox no longer holds its end of the pipes
	ending  atomic.Bool   // we are ending it ourselves
	settled chan struct{} // closed when its limits hold, or never will; nil: they hold
	hurry   chan struct{} // closed by hasten
	hasten  func()        // somebody waits for settled
	letGo   sync.Once     // release

	killsMu sync.Mutex
	kills   *killCounter // guarded by killsMu; nil without cgroups
	seen    uint64       // guarded by killsMu; the kernel's memory kills, at the last look
	seenAt  time.Time    // guarded by killsMu; when the last of them was first seen
}

// open attaches to a sandbox that runs. The machine takes the lock over.
func (b *Backend) open(r *record, e *engine, lock *filelock.Lock) (*machine, error) {
	lost := func(err error) error {
		return &v1.Error{
			Code: v1.CodeSandboxLost, Op: "attach", Message: "sandbox " + r.ID + " has ended", Err: err,
			Remedy: "make a new one, or restore a snapshot",
		}
	}
	st, err := e.state(r.ID)
	if err != nil {
		return nil, lost(err)
	}
	p, err := openEngineProcess(st.Sandbox.Pid)
	if err != nil {
		return nil, lost(err)
	}
	s, err := fifo.Open(b.sandboxes.Path(r.ID))
	if err != nil {
		p.Close()
		return nil, lost(err)
	}
	m := &machine{
		Machine: backendkit.NewMachine(r.Record), backend: b, record: r, engine: e, stream: s, lock: lock, process: p,
	}
	var unsettled *cgroup
	if host, _ := b.limits(); host != nil && r.Cgroup {
		group := host.open(r.ID)
		m.kills, _ = group.kills() // without them a kill is reported as one by a signal
		if m.kills != nil {
			m.seen, _ = m.kills.count() // those of before say nothing about a later end
		}
		if !group.settled() { // it is new, or the program that started it has died before it was done
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
	if err := m.process.Wait(context.Background()); err != nil {
		m.End(nil) // we have let go of it
		return
	}
	if m.Unexplained() {
		m.Blame(m.diagnose())
	}
	_ = m.stream.Close() // wakes whoever waits for the guest
	m.End(nil)
}

// diagnose says why the sandbox ended by itself.
func (m *machine) diagnose() error {
	e := &v1.Error{Code: v1.CodeSandboxLost, Op: "watch sandbox", Remedy: "make a new one, or restore a snapshot"}
	if m.killedForMemory() {
		e.Message = "the host's kernel ended the sandbox for memory"
		return e
	}
	pid := m.process.PID()
	switch status, ok := m.process.ExitStatus(); {
	case !ok:
		e.Message = fmt.Sprintf("the sandbox's process %d has ended", pid)
	case status.Signaled():
		e.Message = fmt.Sprintf("the sandbox's process %d was killed by %s", pid, unix.SignalName(status.Signal()))
	case status.ExitStatus() == engineFailed:
		e.Message = fmt.Sprintf("the sandbox's process %d gave up", pid)
	default:
		e.Code = v1.CodeGuestLost
		e.Message = "the guest in the sandbox " + guestEnd(status.ExitStatus()) + ", and the sandbox with it"
	}
	if said := fifo.PendingStderr(m.backend.sandboxes.Path(m.ID())); said != "" {
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

// settle sees to the limits that would slow a start down, and the first calls as well: it uses more than one processor, and while
// processes are moved between cgroups nothing on the machine can fork. They hold a moment later. A sandbox that cannot have them is ended.
func (m *machine) settle(group *cgroup) {
	defer close(m.settled)
	select {
	case <-time.After(m.backend.settleAfter):
	case <-m.hurry:
	case <-m.Gone():
	}
	if m.ending.Load() {
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
	if m.process.Ended() {
		return // that is why, and watch explains it better
	}
	if !m.Blame(startError(fmt.Errorf("limits: %w", err))) {
		return
	}
	if st, err := m.engine.state(m.ID()); err == nil {
		_ = st.kill(ctx) // watch notices
	}
}

// separate puts the processes of commands apart from sentry and guest; see cgroup_linux.go.
func (m *machine) separate(ctx context.Context, group *cgroup) error {
	const name = "/" + programs.GuestName
	for {
		for _, pid := range descendants(m.process.PID()) {
			if mapsFile(pid, name) {
				return group.adopt(m.process.PID(), name)
			}
		}
		select {
		case <-m.Gone():
			return m.Cause()
		case <-ctx.Done():
			return fmt.Errorf("the guest's process did not appear: %w", context.Cause(ctx))
		case <-time.After(time.Millisecond):
		}
	}
}

// stop says that the end which comes is ours.
func (m *machine) stop() {
	m.ending.Store(true)
	m.Stopping()
}

// abandon lets go of the sandbox, alive or not. Whoever asks has been heard when it returns, whether or not he was the first.
func (m *machine) abandon() { m.letGo.Do(m.release) }

func (m *machine) release() {
	if m.lost.Load() || m.process.Ended() {
		// The other end of the pipes has gone, so the process has ended or is about to: let watch find out why.
		select {
		case <-m.Gone():
		case <-time.After(deathWait):
		}
	}
	m.Stopping()
	if m.settled != nil {
		m.hasten()
		<-m.settled // it may live on without us, but not without its limits
	}
	m.process.Close()
	<-m.Gone()
	_ = m.stream.Close()
	m.lock.Release()
	if m.kills != nil {
		m.kills.close()
	}
	m.backend.mu.Lock()
	defer m.backend.mu.Unlock()
	if m.backend.machines[m.ID()] == m {
		delete(m.backend.machines, m.ID())
	}
}

// Stream implements sandbox.Machine.
func (m *machine) Stream() io.ReadWriteCloser { return attachment{m} }

// attachment is the stream as the host's client sees it: closing it lets go of the sandbox.
type attachment struct{ m *machine }

func (a attachment) Read(p []byte) (int, error) {
	n, err := a.m.stream.Read(p)
	if errors.Is(err, io.EOF) {
		a.m.lost.Store(true)
	}
	return n, err
}

func (a attachment) Write(p []byte) (int, error) {
	n, err := a.m.stream.Write(p)
	if errors.Is(err, unix.EPIPE) { // whoever writes may be the first to notice
		a.m.lost.Store(true)
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

// MemoryKills implements sandbox.Machine. The guest reports those it killed itself; these are the kernel's.
func (m *machine) MemoryKills() (uint64, bool) {
	m.killsMu.Lock()
	defer m.killsMu.Unlock()
	n, ok := m.countKills()
	if ok && n > m.seen {
		m.seen, m.seenAt = n, time.Now()
	}
	return n, ok
}

// countKills reads the kernel's count. Preconditions: m.killsMu is held.
func (m *machine) countKills() (uint64, bool) {
	if m.kills == nil {
		return 0, false
	}
	n, err := m.kills.count()
	return n, err == nil
}

// freshKill is how long after a kill was counted the end of the sandbox may still be its effect: a command that begins between the two
// looks at the count as well.
const freshKill = time.Second

// killedForMemory reports whether the kernel has killed something since the last look, which was not about the
// end of the sandbox.
func (m *machine) killedForMemory() bool {
	m.killsMu.Lock()
	defer m.killsMu.Unlock()
	n, ok := m.countKills()
	return ok && (n > m.seen || !m.seenAt.IsZero() && time.Since(m.seenAt) < freshKill)
}

// killCounter tells how many processes of a sandbox the host's kernel has killed at the memory limit. It is asked before every
// cell, so its files stay open: opening them each time cost 0.1 ms and more, a sixth of a warm cell.
type killCounter struct{ files []*os.File }

var killKey = []byte("oom_kill ")

// kills opens the counters. On v1 a kill is counted where the victim was, not above.
func (g *cgroup) kills() (*killCounter, error) {
	name, dirs := "memory.events", []string{g.dir("memory")}
	if !g.host.unified {
		name, dirs = "memory.oom_control", append(dirs, g.dir("memory", cgroupEngine))
	}
	k := &killCounter{}
	for _, dir := range dirs {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			k.close()
			return nil, err
		}
		k.files = append(k.files, f)
	}
	return k, nil
}

// count adds the counters up.
func (k *killCounter) count() (uint64, error) {
	var total uint64
	var buf [512]byte
	for _, f := range k.files {
		n, err := f.ReadAt(buf[:], 0)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		for line := range bytes.Lines(buf[:n]) {
			if value, ok := bytes.CutPrefix(line, killKey); ok {
				v, err := strconv.ParseUint(string(bytes.TrimSpace(value)), 10, 64)
				if err != nil {
					return 0, err
				}
				total += v
			}
		}
	}
	return total, nil
}

func (k *killCounter) close() {
	for _, f := range k.files {
		_ = f.Close() // only read
	}
}
