package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/filelock"
)

// Timing of a server's own work.
const (
	// idleTick is how often a server looks whether anything is left to look after, unless its patience is shorter.
	idleTick = time.Second
	// idleWait is how long a server waits until it is idle before it tells a caller that it is not, and idlePoll how
	// often it looks.
	idleWait = 500 * time.Millisecond
	idlePoll = 10 * time.Millisecond
	// takeOver is how long a server waits for the one before it to give up the data directory.
	takeOver = 45 * time.Second
)

// HostOptions describe a server.
type HostOptions struct {
	Stamp      Stamp
	Background bool   // it was started by itself, and ends by itself
	Listen     string // where it serves HTTP besides, for Status
	// IdleExit is the time without callers and work after which the server exits; 0: never.
	IdleExit time.Duration
}

// Host is the server's side of a place: it holds the lock and answers on the control socket.
type Host struct {
	place   *Place
	opts    HostOptions
	lock    *filelock.Lock
	leave   context.CancelFunc
	leaving context.Context
	work    sync.WaitGroup

	mu       sync.Mutex
	status   Status                // guarded by mu
	listener net.Listener          // guarded by mu
	conns    map[net.Conn]struct{} // guarded by mu
	since    time.Time             // guarded by mu; when the last caller left
	busy     func() bool           // guarded by mu; nil until the server serves
}

// Claim takes the data directory. A server that was started by itself makes room for one that was not; any other is the
// error server_running. The caller must Release.
func (p *Place) Claim(ctx context.Context, o HostOptions) (*Host, error) {
	l, err := p.claim(ctx, o)
	if err != nil {
		return nil, err
	}
	h := &Host{place: p, opts: o, lock: l, conns: map[net.Conn]struct{}{}, since: time.Now()}
	h.leaving, h.leave = context.WithCancel(context.Background())
	h.status = Status{
		PID: os.Getpid(), Born: born(os.Getpid()), Phase: Starting, Background: o.Background, Stamp: o.Stamp, Started: time.Now().UTC(), Data: p.Data, Socket: p.Socket(), Listen: o.Listen,
	}
	if err := h.publish(); err != nil {
		l.Release()
		return nil, err
	}
	return h, nil
}

func (p *Place) claim(ctx context.Context, o HostOptions) (*filelock.Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, takeOver)
	defer cancel()
	if l, err := filelock.Try(p.lockFile()); !errors.Is(err, filelock.ErrHeld) {
		return l, err
	}
	// Callers must not start a server of their own between the old one and us. One that was started by itself has a
	// caller who holds this lock already.
	if !o.Background {
		start, err := filelock.Acquire(ctx, p.startLock())
		if err != nil {
			return nil, err
		}
		defer start.Release()
		s, err := p.who(ctx)
		if err != nil {
			return nil, err
		}
		if s != nil && !s.Background && s.Phase != Leaving {
			return nil, running(*s)
		}
		if err := p.stop(ctx); err != nil {
			return nil, err
		}
	}
	for {
		if l, err := filelock.Try(p.lockFile()); !errors.Is(err, filelock.ErrHeld) {
			return l, err
		}
		if c, err := p.Find(ctx); err == nil {
			c.Close()
			return nil, running(c.Status) // somebody was quicker, and is there to stay
		}
		select {
		case <-ctx.Done():
			s, err := p.read()
			if err != nil {
				return nil, context.Cause(ctx)
			}
			return nil, running(s)
		case <-time.After(poll):
		}
	}
}

// publish writes the server's status for those to whom it does not answer.
func (h *Host) publish() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return atomicfile.WriteJSON(h.place.statusFile(), h.status)
}

// Socket listens for the API. Only this user can reach it.
func (h *Host) Socket(ctx context.Context) (net.Listener, error) {
	return listen(ctx, h.place.Socket())
}

// listen makes a socket of this user's own. What lies there was left by a server that was killed: we hold the lock.
func listen(ctx context.Context, path string) (net.Listener, error) {
	if fi, err := os.Lstat(path); err == nil && fi.Mode()&os.ModeSocket == 0 {
		return nil, &v1.Error{Code: v1.CodeInvalidRequest, Op: "listen on " + path, Message: "there is a file, and it is no socket", Remedy: "choose another path with server.socket"}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Ready says that the server serves: from now on callers find it. Busy reports whether there is something to look after.
func (h *Host) Ready(ctx context.Context, busy func() bool) error {
	l, err := listen(ctx, h.place.control())
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.listener, h.status.Phase, h.since, h.busy = l, Serving, time.Now(), busy
	h.mu.Unlock()
	if err := h.publish(); err != nil {
		l.Close()
		return err
	}
	h.work.Go(func() { h.accept(l) })
	if h.opts.IdleExit > 0 {
		h.work.Go(func() { h.watch(busy) })
	}
	return nil
}

// Leaving is done once somebody asked the server to leave, or nothing is left to look after.
func (h *Host) Leaving() <-chan struct{} { return h.leaving.Done() }

// Depart hides the server from callers: whoever comes now waits until it has gone and starts another.
func (h *Host) Depart() {
	h.leave()
	h.mu.Lock()
	h.status.Phase = Leaving
	if h.listener != nil {
		h.listener.Close()
	}
	h.mu.Unlock()
	_ = h.publish() // a caller that reads the old phase only waits less patiently
}

// Release gives the data directory up. Everything of the server must have ended.
func (h *Host) Release() {
	h.Depart()
	h.mu.Lock()
	for c := range h.conns {
		c.Close()
	}
	h.mu.Unlock()
	h.work.Wait()
	h.lock.Release()
}

// accept answers callers until the listener is closed.
func (h *Host) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		h.mu.Lock()
		h.conns[c] = struct{}{}
		h.mu.Unlock()
		h.work.Go(func() {
			h.answer(c)
			c.Close()
			h.mu.Lock()
			delete(h.conns, c)
			h.since = time.Now()
			h.mu.Unlock()
		})
	}
}

// request is what a caller says, one JSON value after the other.
type request struct {
	Do string `json:"do"` // hello, idle or stop
}

// answer serves one caller until it hangs up. It counts as one who needs the server all that time.
func (h *Host) answer(c net.Conn) {
	in := json.NewDecoder(bufio.NewReader(c))
	for {
		var r request
		if in.Decode(&r) != nil {
			return
		}
		h.mu.Lock()
		s := h.status
		s.Callers = len(h.conns)
		h.mu.Unlock()
		if r.Do == "idle" {
			s.Idle = h.idle()
		}
		if r.Do == "stop" {
			s.Phase = Leaving
		}
		if json.NewEncoder(c).Encode(s) != nil {
			return
		}
		if r.Do == "stop" {
			h.leave()
		}
	}
}

// idle reports whether the server has nothing to look after and no caller but the one that asks. It waits up to idleWait
// for that: a command that has just exited may still count as a caller, and a run that has just ended as under way. The
// next command would then be served with the previous command's configuration.
func (h *Host) idle() bool {
	end := time.Now().Add(idleWait)
	for {
		h.mu.Lock()
		callers, busy := len(h.conns), h.busy
		h.mu.Unlock()
		if callers == 1 && busy != nil && !busy() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
		select {
		case <-h.leaving.Done():
			return false
		case <-time.After(idlePoll):
		}
	}
}

// watch leaves when there was neither a caller nor anything to look after for long enough.
func (h *Host) watch(busy func() bool) {
	tick := time.NewTicker(min(idleTick, h.opts.IdleExit))
	defer tick.Stop()
	for {
		select {
		case <-h.leaving.Done():
			return
		case <-tick.C:
		}
		occupied := busy()
		h.mu.Lock()
		if occupied || len(h.conns) > 0 {
			h.since = time.Now()
		}
		over := time.Since(h.since) >= h.opts.IdleExit
		if over {
			h.listener.Close() // nobody comes in between this decision and our leaving
		}
		h.mu.Unlock()
		if over {
			h.leave()
			return
		}
	}
}
