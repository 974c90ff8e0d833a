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

// Timing of a caller.
const (
	// poll is how often a server that does not answer is looked for again.
	poll = 10 * time.Millisecond
	// answerWait is how long a server has to say who it is. On a crowded machine that takes more than a moment; one that
	// takes longer is taken for broken.
	answerWait = 3 * time.Second
	// phaseWait is how long a server that is starting or leaving is waited for.
	phaseWait = 30 * time.Second
	// stopWait is how long one that was asked to leave has, and killWait how long one that was told to by a signal.
	stopWait = 30 * time.Second
	killWait = 3 * time.Second
	// startAttempts is how often a server is started that has left again before its caller came: it lingers only so long.
	startAttempts = 5
)

// Conn holds a server: while it is open, one that was started by itself does not leave.
type Conn struct {
	Status Status
	wait   time.Duration
	conn   net.Conn
	in     *json.Decoder
}

// Close lets the server go.
func (c *Conn) Close() error { return c.conn.Close() }

func (c *Conn) ask(ctx context.Context, do string) (Status, error) {
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

// Wait returns when the server has gone, or Close was called.
func (c *Conn) Wait() {
	_ = c.conn.SetDeadline(time.Time{}) // a closed one is what is waited for
	var s Status
	for c.in.Decode(&s) == nil { // it says nothing unasked
	}
}

// Find gives the server that answers, or an error if none does.
func (p *Place) Find(ctx context.Context) (*Conn, error) {
	var d net.Dialer
	dialing, cancel := context.WithTimeout(ctx, p.answerWait)
	defer cancel()
	nc, err := d.DialContext(dialing, "unix", p.control())
	if err != nil {
		return nil, errors.Join(errNobody, err)
	}
	c := &Conn{wait: p.answerWait, conn: nc, in: json.NewDecoder(bufio.NewReader(nc))}
	if c.Status, err = c.ask(ctx, "hello"); err != nil {
		nc.Close()
		return nil, errors.Join(errNobody, err)
	}
	return c, nil
}

// Starter starts a server in the background and returns once it serves, or with the reason why it does not.
type Starter func(ctx context.Context) error

// Ensure gives a server that works and is not older than the caller: the one there is, or one that it starts in the place of
// a missing, broken or older one. One with another configuration is replaced while it is idle. Servers that a person started are never replaced.
func (p *Place) Ensure(ctx context.Context, me Stamp, start Starter) (*Conn, error) {
	if c, err := p.Find(ctx); err == nil {
		if !p.outdated(ctx, c, me) {
			return c, nil
		}
		c.Close()
	}
	l, err := filelock.Acquire(ctx, p.startLock())
	if err != nil {
		return nil, &v1.Error{Code: CodeNotReady, Op: "start the server", Message: "another caller is starting it", Retry: true, Err: err}
	}
	defer l.Release()
	for attempt := 1; ; attempt++ {
		c, err := p.usable(ctx, me)
		if c != nil || err != nil {
			return c, err
		}
		// One that was started by hand in the meantime is as good as ours.
		if err := start(ctx); err != nil && v1.CodeOf(err) != CodeRunning {
			return nil, err
		}
		c, err = p.Find(ctx)
		if err == nil || attempt == startAttempts || ctx.Err() != nil {
			return c, err
		}
	}
}

// outdated reports whether a server is to be replaced. What it looks after must not notice another configuration, so only an idle server is
// replaced for that.
func (p *Place) outdated(ctx context.Context, c *Conn, me Stamp) bool {
	there := c.Status.Stamp
	switch {
	case !c.Status.Background:
		return false
	case me.NewerThan(there):
		return true
	case me.Config == "" || me.Config == there.Config:
		return false
	}
	s, err := c.ask(ctx, "idle")
	return err == nil && s.Idle
}

// usable gives a server that needs no replacement, or neither server nor error once the place is free.
//
// Preconditions: the caller holds the lock for starting.
func (p *Place) usable(ctx context.Context, me Stamp) (*Conn, error) {
	limit, cancel := context.WithTimeout(ctx, phaseWait)
	defer cancel()
	for {
		before, _ := p.read() // what cannot be read says nothing
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
		// Somebody has the place and does not answer. He is given time, unless he served before we asked and says so still: the status
		// may be that of the server before.
		s, err := p.read()
		known := err == nil && s.lives()
		hung := known && s.Phase == Serving && before.Phase == Serving && before.PID == s.PID
		if hung || limit.Err() != nil {
			if known && !s.Background {
				return nil, &v1.Error{
					Code: CodeNotReady, Op: "reach the server", Message: fmt.Sprintf("the one with pid %d does not answer", s.PID),
					Remedy: "it was not started by recluse itself: end it, or see what it does", Retry: true, Err: failed,
				}
			}
			return nil, p.force(ctx)
		}
		select {
		case <-ctx.Done():
		case <-time.After(poll):
		}
	}
}

// Stop asks the server to leave and waits until it has. Its sessions live on for the next one. No server is no error.
func (p *Place) Stop(ctx context.Context) error {
	l, err := filelock.Acquire(ctx, p.startLock())
	if err != nil {
		return err
	}
	defer l.Release()
	return p.stop(ctx)
}

// stop ends whatever server there is: by asking, else by a signal, else by force.
//
// Preconditions: the caller holds the lock for starting.
func (p *Place) stop(ctx context.Context) error {
	if c, err := p.Find(ctx); err == nil {
		_, err := c.ask(ctx, "stop")
		c.Close()
		if err == nil && p.gone(ctx, stopWait) {
			return nil
		}
	}
	return p.force(ctx)
}

// force ends the server by a signal, at last by one that it cannot ignore.
//
// Preconditions: the caller holds the lock for starting.
func (p *Place) force(ctx context.Context) error {
	for _, sig := range []os.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		s, err := p.holder(ctx, p.killWait)
		if s == nil || err != nil {
			return err
		}
		_ = s.signal(sig) // one that has ended meanwhile is what is wanted
		if p.gone(ctx, p.killWait) {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return &v1.Error{Code: CodeNotReady, Op: "end the server", Message: "it does not end", Remedy: "see " + p.Log()}
}

// holder gives what the holder of the server's lock says about itself, or nil once nobody holds it. One that has just taken the lock has not
// written yet, and what is there is the word of a dead one.
func (p *Place) holder(ctx context.Context, wait time.Duration) (*Status, error) {
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
				Code: CodeNotReady, Op: "find the server", Message: "somebody holds " + p.lockFile() + " and does not say who", Remedy: "see " + p.Log(), Retry: true,
				Err: context.Cause(ctx),
			}
		case <-time.After(poll):
		}
	}
}

// who gives the status of the server that has the place, by its own word if it answers, or nil once there is none.
func (p *Place) who(ctx context.Context) (*Status, error) {
	c, err := p.Find(ctx)
	if err != nil {
		return p.holder(ctx, phaseWait)
	}
	defer c.Close()
	return &c.Status, nil
}

// gone waits until nobody holds the server's lock.
func (p *Place) gone(ctx context.Context, wait time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	l, err := filelock.Acquire(ctx, p.lockFile())
	if err != nil {
		return false
	}
	l.Release()
	return true
}
