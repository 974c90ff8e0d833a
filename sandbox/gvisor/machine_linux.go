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
	"github.com/recluse-dev/recluse/internal/guest/launch"
	"github.com/recluse-dev/recluse/internal/pidfd"
	"github.com/recluse-dev/recluse/sandbox"
)

const (
	// deathWait is how long a sandbox may take to end after it has closed its ends of the pipes.
	deathWait = time.Second
	// limitsDelay is how long a new sandbox runs before its processes are moved between cgroups; see applyLimits.
	limitsDelay = 100 * time.Millisecond
)

const remedyLost = "make a new sandbox, or restore a snapshot"

// machine is one attachment to a sandbox.
type machine struct {
	*backendkit.Machine
	backend *Backend
	record  *record
	engine  *engine
	stream  *fifo.Stream
	lock    *filelock.Lock // held while this program is attached
	process *pidfd.Process // the sandbox process of the engine

	lost          atomic.Bool   // the sandbox has closed its ends of the pipes
	ending        atomic.Bool   // this program is ending the sandbox
	limitsDone    chan struct{} // closed when all limits are applied, or cannot be; nil: they were applied before
	applyNow      chan struct{} // closed by requestLimits
	requestLimits func()        // ends the delay before the limits are applied
	detachOnce    sync.Once     // for release

	killsMu sync.Mutex
	kills   *killCounter // guarded by killsMu; nil without cgroups
	seen    uint64       // guarded by killsMu; the kernel's count of OOM kills when it was last read
	seenAt  time.Time    // guarded by killsMu; when the count was last seen to increase
}

// NetworkOptions implements sandbox.Networker.
func (m *machine) NetworkOptions() sandbox.NetworkOptions { return m.backend.NetworkOptions() }

// NetworkOptions implements sandbox.Networker, for sessions without a running sandbox.
func (b *Backend) NetworkOptions() sandbox.NetworkOptions { return b.opts.Network }

// CertificatesFile implements sandbox.Certifier.
func (m *machine) CertificatesFile() string {
	if s := m.Spec(); s.Image == "" && s.RootFS == "" {
		return ""
	}
	return guestState + "/" + launch.CertificatesName
}

// open attaches to a running sandbox. The machine takes ownership of the lock.
func (b *Backend) open(r *record, e *engine, lock *filelock.Lock) (*machine, error) {
	lost := func(err error) error {
		return &v1.Error{
			Code:    v1.CodeSandboxLost,
			Op:      "attach",
			Message: "sandbox " + r.ID + " has ended",
			Remedy:  remedyLost,
			Err:     err,
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
		Machine: backendkit.NewMachine(r.Record),
		backend: b,
		record:  r,
		engine:  e,
		stream:  s,
		lock:    lock,
		process: p,
	}
	var unlimited *cgroup
	if host, _ := b.limits(); host != nil && r.Cgroup {
		group := host.open(r.ID)
		m.kills, _ = group.kills() // without the counters, an OOM kill is reported as a kill by a signal
		if m.kills != nil {
			m.seen, _ = m.kills.count() // earlier kills do not explain a later end
		}
		if !group.limitsApplied() { // the sandbox is new, or the program that started it died before it applied them
			unlimited = group
			m.limitsDone, m.applyNow = make(chan struct{}), make(chan struct{})
			m.requestLimits = sync.OnceFunc(func() { close(m.applyNow) })
		}
	}
	b.mu.Lock()
	b.machines[r.ID] = m
	b.mu.Unlock()
	go m.watch()
	if unlimited != nil {
		go m.applyLimits(unlimited)
	}
	return m, nil
}

// watch waits until the sandbox has ended or this program has detached from it.
func (m *machine) watch() {
	if err := m.process.Wait(context.Background()); err != nil {
		m.End(nil) // this program has detached
		return
	}
	if m.NeedsCause() {
		m.SetCause(m.diagnose())
	}
	_ = m.stream.Close() // unblocks calls that wait for the guest
	m.End(nil)
}

// diagnose returns the cause of an end that this program did not request.
func (m *machine) diagnose() error {
	e := &v1.Error{Code: v1.CodeSandboxLost, Op: "watch sandbox", Remedy: remedyLost}
	if m.killedForMemory() {
		e.Message = "the host's kernel OOM-killed the sandbox"
		return e
	}
	pid := m.process.PID()
	switch status, ok := m.process.ExitStatus(); {
	case !ok:
		e.Message = fmt.Sprintf("the sandbox's process %d has ended", pid)
	case status.Signaled():
		e.Message = fmt.Sprintf("the sandbox's process %d was killed by %s", pid, unix.SignalName(status.Signal()))
	case status.ExitStatus() == engineFailed:
		e.Message = fmt.Sprintf("the sandbox's process %d failed", pid)
	default:
		e.Code = v1.CodeGuestLost
		e.Message = "the sandbox ended because its guest " + describeGuestExit(status.ExitStatus())
	}
	if stderr := fifo.PendingStderr(m.backend.sandboxes.Path(m.ID())); stderr != "" {
		e.Err = errors.New(stderr)
	}
	return e
}

// engineFailed is the exit status of an engine that cannot continue. Any other status is that of the guest, in the
// encoding of a shell.
const engineFailed = 128

// describeGuestExit describes how the guest ended. status is encoded as in a shell.
func describeGuestExit(status int) string {
	if status > engineFailed {
		return "was killed by " + unix.SignalName(syscall.Signal(status-engineFailed))
	}
	return fmt.Sprintf("ended with exit status %d", status)
}

// applyLimits applies the limits that would slow down a start and the first calls: a start uses more than one
// processor, and while processes are moved between cgroups, no process on the machine can fork. These limits apply
// after limitsDelay, or as soon as requestLimits is called. If they cannot be applied, the sandbox is killed.
func (m *machine) applyLimits(group *cgroup) {
	defer close(m.limitsDone)
	select {
	case <-time.After(m.backend.limitsDelay):
	case <-m.applyNow:
	case <-m.Gone():
	}
	if m.ending.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), bootWait)
	defer cancel()
	err := m.separateStubs(ctx, group)
	if err == nil {
		err = group.limit(cgroupLimits{cpus: m.record.Spec.Limits.CPUs})
	}
	if err == nil {
		return
	}
	if m.process.Ended() {
		return // the error is a consequence of the end, and watch reports a better cause
	}
	if !m.SetCause(startError(fmt.Errorf("limits: %w", err))) {
		return
	}
	if st, err := m.engine.state(m.ID()); err == nil {
		_ = st.kill(ctx) // watch notices the end
	}
}

// separateStubs moves the processes of commands into another cgroup than sentry and guest; see cgroup_linux.go.
func (m *machine) separateStubs(ctx context.Context, group *cgroup) error {
	const name = "/" + programs.GuestName
	for {
		for _, pid := range descendants(m.process.PID()) {
			if mapsFile(pid, name) {
				return group.moveStubs(m.process.PID(), name)
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

// expectEnd records that this program ends the sandbox, so its end needs no cause.
func (m *machine) expectEnd() {
	m.ending.Store(true)
	m.Stopping()
}

// detach releases the sandbox, alive or not. When it returns, the release is complete, also if another caller began it.
func (m *machine) detach() { m.detachOnce.Do(m.release) }

func (m *machine) release() {
	if m.lost.Load() || m.process.Ended() {
		// The other ends of the pipes are closed, so the process has ended or is about to. Let watch find the cause.
		select {
		case <-m.Gone():
		case <-time.After(deathWait):
		}
	}
	m.Stopping()
	if m.limitsDone != nil {
		m.requestLimits()
		<-m.limitsDone // the sandbox may continue without this program, but not without its limits
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

// attachment is the stream that the client of the guest uses. Close detaches from the sandbox.
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
	if errors.Is(err, unix.EPIPE) { // a writer may be the first to notice
		a.m.lost.Store(true)
	}
	return n, err
}

// SetWriteDeadline makes it possible to cancel a call that cannot be sent.
func (a attachment) SetWriteDeadline(t time.Time) error { return a.m.stream.SetWriteDeadline(t) }

func (a attachment) Close() error {
	_ = a.m.stream.Close() // at once: a Read may be blocked
	a.m.detach()
	return nil
}

// MemoryKills implements sandbox.Machine. It counts the kills by the kernel; the guest reports its own.
func (m *machine) MemoryKills() (uint64, bool) {
	m.killsMu.Lock()
	defer m.killsMu.Unlock()
	n, ok := m.countKills()
	if ok && n > m.seen {
		m.seen, m.seenAt = n, time.Now()
	}
	return n, ok
}

// countKills reads the kernel's counters.
//
// Preconditions: m.killsMu is held.
func (m *machine) countKills() (uint64, bool) {
	if m.kills == nil {
		return 0, false
	}
	n, err := m.kills.count()
	return n, err == nil
}

// oomFreshness is the longest time between an OOM kill and the end of the sandbox that it caused. Without it, a command
// that begins between the two would read the counter and so hide the kill from killedForMemory.
const oomFreshness = time.Second

// killedForMemory reports whether the kernel has OOM-killed a process since the counters were last read by MemoryKills,
// or shortly before that.
func (m *machine) killedForMemory() bool {
	m.killsMu.Lock()
	defer m.killsMu.Unlock()
	n, ok := m.countKills()
	return ok && (n > m.seen || !m.seenAt.IsZero() && time.Since(m.seenAt) < oomFreshness)
}

// killCounter counts the processes of a sandbox that the host's kernel has killed at the memory limit. It is read
// before every cell, so its files stay open: opening them each time cost at least 0.1 ms, a sixth of a warm cell.
type killCounter struct{ files []*os.File }

var killKey = []byte("oom_kill ")

// kills opens the counters. With cgroup v1, a kill is counted in the cgroup of the killed process, not in its parents.
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

// count returns the sum of the counters.
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
		_ = f.Close() // opened for reading
	}
}
