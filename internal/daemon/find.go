package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/filelock"
)

// Times of a caller.
const (
	// pollInterval is the time between two checks of a server that does not answer.
	pollInterval = 10 * time.Millisecond
	// answerWait is how long a server may take to answer a query. On a busy machine that takes some time. A server that
	// takes longer is considered broken.
	answerWait = 3 * time.Second
	// phaseWait is how long a caller waits for a server that is starting or leaving.
	phaseWait = 30 * time.Second
	// stopWait is how long a server may take to exit after a stop request, and killWait after a signal.
	stopWait = 30 * time.Second
	killWait = 3 * time.Second
	// startAttempts is how often a server is started if it exits, because it is idle, before its caller connects.
	startAttempts = 5
)

// Conn is a connection to a server. While it is open, a background server does not exit.
type Conn struct {
	Status Status
	wait   time.Duration
	conn   net.Conn
	in     *json.Decoder
}

// Close closes the connection.
func (c *Conn) Close() error { return c.conn.Close() }

// query sends a request (hello, idle or stop) and returns the status of the server.
func (c *Conn) query(ctx context.Context, do string) (Status, error) {
	deadline := time.Now().Add(c.wait)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	var s Status
	if err := c.conn.SetDeadline(deadline); err != nil {
		return s, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := json.NewEncoder(c.conn).Encode(request{Do: do}); err != nil {
		return s, err
	}
	return s, c.in.Decode(&s)
}

// Wait returns when the server has exited, or Close was called.
func (c *Conn) Wait() {
	_ = c.conn.SetDeadline(time.Time{}) // an error means that the connection is closed, and Decode returns
	var s Status
	for c.in.Decode(&s) == nil { // the server sends nothing without a request
	}
}

// Find returns a connection to the server, or an error if no server answers.
func (p *Place) Find(ctx context.Context) (*Conn, error) {
	var d net.Dialer
	dialing, cancel := context.WithTimeout(ctx, p.answerWait)
	defer cancel()
	nc, err := d.DialContext(dialing, "unix", p.control())
	if err != nil {
		return nil, errors.Join(errNoServer, err)
	}
	c := &Conn{wait: p.answerWait, conn: nc, in: json.NewDecoder(bufio.NewReader(nc))}
	if c.Status, err = c.query(ctx, "hello"); err != nil {
		nc.Close()
		return nil, errors.Join(errNoServer, err)
	}
	return c, nil
}

// Starter starts a server in the background and returns once it serves, or with the reason why it does not.
type Starter func(ctx context.Context) error

// Ensure returns a connection to a server that works and is not older than the caller. It starts a server if there is
// none, and replaces a background server that is broken or older. A background server with another configuration is
// replaced only while it is idle. Servers started with recluse serve are never replaced.
func (p *Place) Ensure(ctx context.Context, me Stamp, start Starter) (*Conn, error) {
	if c, err := p.Find(ctx); err == nil {
		if !p.outdated(ctx, c, me) {
			return c, nil
		}
		c.Close()
	}
	l, err := filelock.Acquire(ctx, p.startLock())
	if err != nil {
		return nil, &v1.Error{
			Code:    CodeNotReady,
			Op:      "start the server",
			Message: "another caller is starting the server",
			Retry:   true,
			Err:     err,
		}
	}
	defer l.Release()
	for attempt := 1; ; attempt++ {
		c, err := p.findUsable(ctx, me)
		if c != nil || err != nil {
			return c, err
		}
		// A server that was started meanwhile is also usable.
		if err := start(ctx); err != nil && v1.CodeOf(err) != CodeRunning {
			return nil, err
		}
		c, err = p.Find(ctx)
		if err == nil || attempt == startAttempts || ctx.Err() != nil {
			return c, err
		}
	}
}

// outdated reports whether a server must be replaced. For another configuration only an idle server is replaced,
// because running sessions must not get a new configuration.
func (p *Place) outdated(ctx context.Context, c *Conn, me Stamp) bool {
	server := c.Status.Stamp
	switch {
	case !c.Status.Background:
		return false
	case me.NewerThan(server):
		return true
	case me.Config == "" || me.Config == server.Config:
		return false
	}
	s, err := c.query(ctx, "idle")
	return err == nil && s.Idle
}

// findUsable returns a server that need not be replaced. It stops other servers, and returns nil, nil when no server is
// left.
//
// Preconditions: the start lock is held.
func (p *Place) findUsable(ctx context.Context, me Stamp) (*Conn, error) {
	limit, cancel := context.WithTimeout(ctx, phaseWait)
	defer cancel()
	for {
		before, _ := p.read() // without a readable file, nothing is known
		c, failed := p.Find(ctx)
		if failed == nil {
			if !p.outdated(ctx, c, me) {
				return c, nil
			}
			c.Close()
			return nil, p.stop(ctx)
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if held, err := filelock.Held(p.lockFile()); !held || err != nil {
			return nil, err
		}
		// A process holds the lock and does not answer. Wait for it, unless the status says Serving both before and
		// after the query: one reading alone may be that of the previous server.
		s, err := p.read()
		known := err == nil && s.lives()
		hung := known && s.Phase == Serving && before.Phase == Serving && before.PID == s.PID
		if hung || limit.Err() != nil {
			if known && !s.Background {
				return nil, &v1.Error{
					Code:    CodeNotReady,
					Op:      "reach the server",
					Message: fmt.Sprintf("the server with pid %d does not answer", s.PID),
					Remedy:  "it was started with recluse serve: check it, or stop it",
					Retry:   true,
					Err:     failed,
				}
			}
			return nil, p.kill(ctx)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pollInterval):
		}
	}
}

// Stop stops the server and waits until it has exited. Sessions stay for the next server. If no server runs, Stop
// returns nil.
func (p *Place) Stop(ctx context.Context) error {
	l, err := filelock.Acquire(ctx, p.startLock())
	if err != nil {
		return err
	}
	defer l.Release()
	return p.stop(ctx)
}

// stop stops the server with a stop request, else with signals.
//
// Preconditions: the start lock is held.
func (p *Place) stop(ctx context.Context) error {
	if c, err := p.Find(ctx); err == nil {
		_, err := c.query(ctx, "stop")
		c.Close()
		if err == nil && p.awaitRelease(ctx, stopWait) {
			return nil
		}
	}
	return p.kill(ctx)
}

// kill sends SIGTERM and, after killWait, SIGKILL to the server.
//
// Preconditions: the start lock is held.
func (p *Place) kill(ctx context.Context) error {
	for _, sig := range []os.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		s, err := p.lockHolder(ctx, p.killWait)
		if s == nil || err != nil {
			return err
		}
		_ = s.signal(sig) // fails if the server has exited meanwhile, which is the aim
		if p.awaitRelease(ctx, p.killWait) {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return &v1.Error{
		Code:    CodeNotReady,
		Op:      "stop the server",
		Message: "the server does not exit after SIGKILL",
		Remedy:  "see the log " + p.Log(),
	}
}

// lockHolder returns the status of the server that holds the lock, or nil when the lock is free. It waits while the
// file has no status of a live process: a server that has just taken the lock has not written its status yet.
func (p *Place) lockHolder(ctx context.Context, wait time.Duration) (*Status, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		s, err := p.read()
		if held, lockErr := filelock.Held(p.lockFile()); !held || lockErr != nil {
			return nil, lockErr
		}
		if err == nil && s.lives() {
			return &s, nil
		}
		select {
		case <-ctx.Done():
			return nil, &v1.Error{
				Code:    CodeNotReady,
				Op:      "find the server",
				Message: "an unknown process holds the lock " + p.lockFile(),
				Remedy:  "see the log " + p.Log(),
				Retry:   true,
				Err:     context.Cause(ctx),
			}
		case <-time.After(pollInterval):
		}
	}
}

// current returns the status of the current server, or nil if there is none. If the server does not answer, it uses the
// status file.
func (p *Place) current(ctx context.Context) (*Status, error) {
	c, err := p.Find(ctx)
	if err != nil {
		return p.lockHolder(ctx, phaseWait)
	}
	defer c.Close()
	return &c.Status, nil
}

// awaitRelease waits until the lock of the server is free. It returns false after wait.
func (p *Place) awaitRelease(ctx context.Context, wait time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	l, err := filelock.Acquire(ctx, p.lockFile())
	if err != nil {
		return false
	}
	l.Release()
	return true
}
