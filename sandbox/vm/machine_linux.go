package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/cleanup"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/filelock"
	"github.com/recluse-dev/recluse/internal/pidfd"
	"github.com/recluse-dev/recluse/sandbox"
)

const remedyLost = "make a new sandbox, or restore a snapshot"

// deathWait is how long a monitor may take to end after it has closed its end of the stream.
const deathWait = time.Second

// machine is one attachment to a sandbox.
type machine struct {
	*backendkit.Machine
	backend *Backend
	conn    net.Conn
	lock    *filelock.Lock // held while this program is attached
	process *pidfd.Process // the monitor
	log     *monitorLog    // of the monitor

	lost       atomic.Bool // the monitor has closed the stream
	detachOnce sync.Once
}

// NetworkOptions implements sandbox.Networker.
func (m *machine) NetworkOptions() sandbox.NetworkOptions { return m.backend.NetworkOptions() }

// NetworkOptions implements sandbox.Networker, for sessions that hibernate.
func (b *Backend) NetworkOptions() sandbox.NetworkOptions { return b.opts.Network }

// Attach implements sandbox.Backend.
func (b *Backend) Attach(ctx context.Context, id string) (sandbox.Machine, error) {
	r, err := b.load(id)
	if err != nil {
		return nil, err
	}
	mon, err := b.monitorOf(r)
	if err != nil {
		return nil, err
	}
	lock, err := b.store.Attach(id)
	if err != nil {
		return nil, err
	}
	cu := cleanup.Make(lock.Release)
	defer cu.Clean()
	// A program that paused the machine to take a snapshot may have died before it resumed it.
	if err := mon.resume(ctx, b.hardware(r)); err != nil && ctx.Err() == nil {
		return nil, lostError(id, err)
	}
	m, err := b.open(ctx, r, mon, lock)
	if err != nil {
		return nil, err
	}
	cu.Release() // the machine owns the lock
	r.Owner = backendkit.Self()
	if err := b.store.Save(id, r); err != nil {
		m.detach()
		return nil, startError(err)
	}
	return m, nil
}

func lostError(id string, err error) error {
	return &v1.Error{
		Code: v1.CodeSandboxLost, Op: "attach", Message: "sandbox " + id + " has ended", Remedy: remedyLost, Err: err,
	}
}

// open attaches to a running machine. The result takes ownership of the lock.
func (b *Backend) open(ctx context.Context, r *record, mon monitor, lock *filelock.Lock) (*machine, error) {
	p, err := pidfd.Open(r.Process.PID)
	if err != nil {
		return nil, lostError(r.ID, err)
	}
	cu := cleanup.Make(p.Close)
	defer cu.Clean()
	if !r.Process.Alive() { // another process has the pid now
		return nil, lostError(r.ID, unix.ESRCH)
	}
	conn, err := mon.dial(ctx, b.hardware(r))
	if err != nil {
		return nil, lostError(r.ID, err)
	}
	cu.Add(func() { _ = conn.Close() })
	log, err := openLog(b.store.Path(r.ID, logFile))
	if err != nil {
		return nil, lostError(r.ID, err)
	}
	m := &machine{Machine: backendkit.NewMachine(r.Record), backend: b, conn: conn, lock: lock, process: p, log: log}
	b.mu.Lock()
	b.machines[r.ID] = m
	b.mu.Unlock()
	cu.Release()
	go m.watch()
	return m, nil
}

// watch waits until the machine has ended or this program has detached from it.
func (m *machine) watch() {
	if err := m.process.Wait(context.Background()); err != nil {
		m.End(nil) // this program has detached
		return
	}
	if m.NeedsCause() {
		m.SetCause(m.diagnose())
	}
	_ = m.conn.Close() // unblocks calls that wait for the guest
	m.End(nil)
}

// diagnose returns the cause of an end that this program did not request.
func (m *machine) diagnose() error {
	e := &v1.Error{Code: v1.CodeSandboxLost, Op: "watch sandbox", Remedy: remedyLost}
	pid := m.process.PID()
	switch status, ok := m.process.ExitStatus(); {
	case !ok:
		e.Message = fmt.Sprintf("the monitor of the machine, process %d, has ended", pid)
	case status.Signaled():
		e.Message = fmt.Sprintf("the monitor of the machine, process %d, was killed by %s", pid,
			unix.SignalName(status.Signal()))
	case status.ExitStatus() != 0:
		e.Message = fmt.Sprintf("the monitor of the machine, process %d, failed", pid)
	default: // the kernel ends the machine with its first process
		e.Code = v1.CodeGuestLost
		e.Message = "the machine ended because its guest or its kernel ended"
	}
	if text := lastLines(m.log.text()); text != "" {
		e.Err = errors.New(text)
	}
	return e
}

// detach releases the machine, alive or not. When it returns, the release is complete, also if another caller began it.
func (m *machine) detach() { m.detachOnce.Do(m.release) }

func (m *machine) release() {
	if m.lost.Load() || m.process.Ended() {
		// The monitor has ended or is about to. Let watch find the cause.
		select {
		case <-m.Gone():
		case <-time.After(deathWait):
		}
	}
	m.Stopping()
	m.process.Close()
	<-m.Gone()
	m.log.close()
	_ = m.conn.Close()
	m.lock.Release()
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
	n, err := a.m.conn.Read(p)
	if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
		a.m.lost.Store(true)
		err = io.EOF
	}
	return n, err
}

func (a attachment) Write(p []byte) (int, error) {
	n, err := a.m.conn.Write(p)
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) { // a writer may be the first to notice
		a.m.lost.Store(true)
	}
	return n, err
}

// SetWriteDeadline makes it possible to cancel a call that cannot be sent.
func (a attachment) SetWriteDeadline(t time.Time) error { return a.m.conn.SetWriteDeadline(t) }

func (a attachment) Close() error {
	_ = a.m.conn.Close() // at once: a Read may be blocked
	a.m.detach()
	return nil
}
