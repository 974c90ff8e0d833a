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

// Times of a server.
const (
	// idleTick is the time between two checks whether the server is idle, unless IdleExit is shorter.
	idleTick = time.Second
	// idleWait is how long the query idle waits for the server to become idle, and idlePoll the time between two
	// checks.
	idleWait = 500 * time.Millisecond
	idlePoll = 10 * time.Millisecond
	// takeOverWait is how long a new server waits for the previous one to release the data directory.
	takeOverWait = 45 * time.Second
)

// HostOptions are the options of Claim.
type HostOptions struct {
	Stamp      Stamp
	Background bool   // started by a caller; exits when it is idle
	Listen     string // HTTP address, for Status
	// IdleExit is the time without callers and work after which the server exits; 0: never.
	IdleExit time.Duration
}

// Host is the server side of a Place: it holds the lock and answers on the control socket.
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

// Claim takes the lock of the data directory. It stops a background server if the new server is not one; any other
// running server is the error server_running. The caller must call Release.
func (p *Place) Claim(ctx context.Context, o HostOptions) (*Host, error) {
	l, err := p.claim(ctx, o)
	if err != nil {
		return nil, err
	}
	h := &Host{place: p, opts: o, lock: l, conns: map[net.Conn]struct{}{}, since: time.Now()}
	h.leaving, h.leave = context.WithCancel(context.Background())
	h.status = Status{
		PID:          os.Getpid(),
		ProcessStart: startTime(os.Getpid()),
		Phase:        Starting,
		Background:   o.Background,
		Stamp:        o.Stamp,
		Started:      time.Now().UTC(),
		Data:         p.Data,
		Socket:       p.Socket(),
		Listen:       o.Listen,
	}
	if err := h.publish(); err != nil {
		l.Release()
		return nil, err
	}
	return h, nil
}

func (p *Place) claim(ctx context.Context, o HostOptions) (*filelock.Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, takeOverWait)
	defer cancel()
	if l, err := filelock.Try(p.lockFile()); !errors.Is(err, filelock.ErrHeld) {
		return l, err
	}
	// The start lock keeps callers from starting a server between the old server and this one. For a background server,
	// the caller that starts it already holds the lock.
	if !o.Background {
		start, err := filelock.Acquire(ctx, p.startLock())
		if err != nil {
			return nil, err
		}
		defer start.Release()
		s, err := p.current(ctx)
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
			return nil, running(c.Status) // another server was faster
		}
		select {
		case <-ctx.Done():
			s, err := p.read()
			if err != nil {
				return nil, context.Cause(ctx)
			}
			return nil, running(s)
		case <-time.After(pollInterval):
		}
	}
}

// publish writes the status file, for callers that get no answer.
func (h *Host) publish() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return atomicfile.WriteJSON(h.place.statusFile(), h.status)
}

// Socket listens on the API socket. Only this user can connect.
func (h *Host) Socket(ctx context.Context) (net.Listener, error) {
	return listen(ctx, h.place.Socket())
}

// listen listens on a UNIX socket that only this user can use. It replaces an existing socket: this process holds the
// lock, so a killed server has left it.
func listen(ctx context.Context, path string) (net.Listener, error) {
	if fi, err := os.Lstat(path); err == nil && fi.Mode()&os.ModeSocket == 0 {
		return nil, &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "listen on " + path,
			Message: "the file exists and is not a socket",
			Remedy:  "choose another path with server.socket",
		}
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

// Ready begins to answer on the control socket: from now on callers find the server. busy reports whether the server
// has work.
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
		h.work.Go(func() { h.exitWhenIdle(busy) })
	}
	return nil
}

// Leaving returns a channel that is closed when the server must exit: after a stop request, or because it is idle.
func (h *Host) Leaving() <-chan struct{} { return h.leaving.Done() }

// StopAnswering hides the server from callers. A new caller waits until the server has exited, and starts another one.
func (h *Host) StopAnswering() {
	h.leave()
	h.mu.Lock()
	h.status.Phase = Leaving
	if h.listener != nil {
		h.listener.Close()
	}
	h.mu.Unlock()
	_ = h.publish() // with the old phase, a caller only waits for a shorter time
}

// Release releases the data directory. The server must have stopped all its work.
func (h *Host) Release() {
	h.StopAnswering()
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

// request is a request on the control socket, one JSON value each.
type request struct {
	Do string `json:"do"` // hello, idle or stop
}

// answer answers the requests of one caller until it closes the connection. Until then, the server does not exit.
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

// idle reports whether the server has no work and no caller but the one that queries. It waits up to idleWait for that,
// because a command that has just exited may still count as a caller, and a run that has just ended as running.
// Otherwise the next command would get a server with the configuration of the previous command.
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

// exitWhenIdle makes the server exit after IdleExit without callers and work.
func (h *Host) exitWhenIdle(busy func() bool) {
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
			h.listener.Close() // no caller can connect after this decision
		}
		h.mu.Unlock()
		if over {
			h.leave()
			return
		}
	}
}
