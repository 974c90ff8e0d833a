package remoteguest

import (
	"cmp"
	"context"
	"io"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/recluse-dev/recluse/internal/guest/carrier"
)

// Event is an event of a process that a service runs, in services whose processes send a stream of events.
type Event struct {
	Started        bool // the first event
	PID            uint32
	Stdout, Stderr []byte
	End            *ExitError
}

// Events are the events of a process.
type Events interface {
	Receive() bool
	Event() Event
	Err() error
	Close() error
}

type serverStream[T any] struct {
	*connect.ServerStreamForClient[T]
	event func(*T) Event
}

// Event returns the event that Receive has read.
func (s serverStream[T]) Event() Event { return s.event(s.Msg()) }

// EventsOf returns the events of a Connect stream.
func EventsOf[T any](s *connect.ServerStreamForClient[T], err error, event func(*T) Event) (Events, error) {
	return serverStream[T]{s, event}, err
}

// Process says how a service connects to a process.
type Process struct {
	Name string // of the backend
	// Open opens the stream of events. The context lives as long as the stream.
	Open func(ctx context.Context) (Events, error)
	// Send sends input.
	Send func(ctx context.Context, pid uint32, b []byte) error
}

// processPipe is a connection to a process.
type processPipe struct {
	Process
	pid    uint32
	events Events
	cancel context.CancelFunc
	stderr []byte // the last line of the error output
}

// Connect opens the stream of events, and waits for the first one. ctx bounds only that.
func (p Process) Connect(ctx context.Context) (carrier.Pipe, error) {
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	timer := time.AfterFunc(callTimeout, cancel)
	e, err := p.Open(life)
	if err == nil && !e.Receive() {
		if err = e.Err(); err == nil {
			err = Broken(p.Name, "the stream of events ended without an event", nil)
		}
		_ = e.Close()
	}
	if err == nil && !e.Event().Started {
		err = Broken(p.Name, "the stream of events does not begin with the start of the process", nil)
		_ = e.Close()
	}
	if early := !timer.Stop(); !stop() || early {
		err = cmp.Or(ctx.Err(), err, context.DeadlineExceeded)
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return &processPipe{Process: p, pid: e.Event().PID, events: e, cancel: cancel}, nil
}

// Send implements carrier.Pipe.
func (c *processPipe) Send(ctx context.Context, b []byte) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.Process.Send(ctx, c.pid, b)
}

// Receive implements carrier.Pipe.
func (c *processPipe) Receive() ([]byte, error) {
	for c.events.Receive() {
		e := c.events.Event()
		if len(e.Stdout) > 0 {
			return e.Stdout, nil
		}
		c.stderr = append(c.stderr, e.Stderr...)
		c.stderr = c.stderr[max(0, len(c.stderr)-maxMessage):]
		if e.End != nil {
			_ = c.events.Close()
			e.End.Text = lastLine(c.stderr)
			return nil, e.End
		}
	}
	err := c.events.Err()
	_ = c.events.Close()
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return nil, err
}

func lastLine(b []byte) string {
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(string(b), "?")), "\n")
	return lines[len(lines)-1]
}

// Close implements carrier.Pipe.
func (c *processPipe) Close() error {
	c.cancel()
	return nil
}
