package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/guest/proc"
	"github.com/recluse-dev/recluse/sandbox"
)

// guest is the process of a sandbox, shared by all attachments to it.
type guest struct {
	pid  int
	gone chan struct{} // closed when it has ended

	mu      sync.Mutex
	stopped bool  // guarded by mu; we were asked to end it
	cause   error // guarded by mu
}

func lostGuest(format string, args ...any) error {
	return &sandbox.Error{Code: sandbox.CodeGuestLost, Message: fmt.Sprintf(format, args...), Remedy: "make a new sandbox"}
}

// ourChild watches a guest that this program has started. Only its parent learns how it ended.
func ourChild(cmd *exec.Cmd, log string) *guest {
	g := &guest{pid: cmd.Process.Pid, gone: make(chan struct{})}
	go func() {
		err := cmd.Wait()
		if e, ok := errors.AsType[*exec.ExitError](err); ok {
			if ws, ok := e.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
				g.end(lostGuest("the guest was killed by signal %s", unix.SignalName(ws.Signal())))
				return
			}
		}
		g.end(lostGuest("the guest has ended: %s%s", cmd.ProcessState, lastWords(log)))
	}()
	return g
}

// lastWords gives what the guest complained about before it ended.
func lastWords(log string) string {
	b, err := os.ReadFile(log)
	if err != nil || len(b) == 0 {
		return ""
	}
	return ": " + strings.ToValidUTF8(strings.TrimSpace(string(b[:min(len(b), 1000)])), "?")
}

// stranger watches a guest that another program has started.
func stranger(pid int, start uint64) (*guest, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, err
	}
	if !alive(pid, start) { // it is asked after the open: from here on the descriptor means this very process
		_ = unix.Close(fd)
		return nil, unix.ESRCH
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	conn, err := f.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	g := &guest{pid: pid, gone: make(chan struct{})}
	go func() {
		defer f.Close()
		// Readable means ended. The runtime's poller waits, so no thread is spent on it.
		err := conn.Read(func(fd uintptr) bool {
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(p, 0)
			return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
		})
		if err != nil {
			g.end(lostGuest("the guest, process %d, can no longer be watched: %v", pid, err))
			return
		}
		g.end(lostGuest("the guest, process %d, has ended", pid))
	}()
	return g, nil
}

func (g *guest) end(cause error) {
	g.mu.Lock()
	if !g.stopped {
		g.cause = cause
	}
	g.mu.Unlock()
	close(g.gone)
}

func (g *guest) why() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cause
}

// stopping says that its end, from now on, is what was asked for.
func (g *guest) stopping() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped = true
}

// alive tells whether a process is still the one that was meant.
func alive(pid int, start uint64) bool {
	p, ok := proc.Get(pid)
	return ok && !p.Zombie && (start == 0 || p.Start == start)
}

// guestBinary finds the guest and what names its version.
func (b *Backend) guestBinary(ctx context.Context) (path, hash string, err error) {
	if b.opts.GuestPath != "" {
		if _, err := os.Stat(b.opts.GuestPath); err != nil {
			return "", "", &sandbox.Error{Code: sandbox.CodeEngineMissing, Op: "find the guest", Message: "there is no " + b.opts.GuestPath, Err: err}
		}
		return b.opts.GuestPath, "", nil
	}
	p, err := bundle.Guest(ctx)
	return p.Path, p.Hash, err
}
