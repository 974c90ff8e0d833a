package server

import (
	"context"
	"errors"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

const (
	// recentOutput is how much of each stream a caller who attaches is sent first.
	recentOutput = 64 << 10
	// inputPause is the time between attempts to give input to an operation that has not read what another caller gave it.
	inputPause = 50 * time.Millisecond
)

// attach returns what follows an operation that an earlier connection began, and gives it the caller's input.
func (s *socket) attach(ses *session.Session, in v1.Attach) (func() (*sandbox.Verdict, error), error) {
	o, err := ses.Operation(s.c.ctx(), in.ID)
	if err != nil {
		return nil, err
	}
	at := v1.Offsets{Stdout: recent(in.Stdout, o.Stdout), Stderr: recent(in.Stderr, o.Stderr)}
	if at.Stdout < 0 || at.Stderr < 0 {
		return nil, invalid("a negative offset")
	}
	if o.Input {
		s.input, s.lasting = newInbox(), true
	}
	s.leave = s.cancel                                  // it ends a connection that takes no output; the caller can attach again
	s.kill = func() { _ = ses.Cancel(s.c.ctx(), o.ID) } // the verdict tells, or there is none
	return func() (*sandbox.Verdict, error) {
		ctx, cancel := s.c.untilDrain()
		defer cancel()
		ts, key := s.c.s.terminals, terminalKey{ses.ID(), o.ID}
		ts.attach(key)
		defer func() { ts.leave(key, s.onPurpose.Load()) }()
		if s.input != nil {
			s.c.s.requests.Go(func() { s.deliver(ctx, ses, o.ID) })
			defer s.input.leave()
		}
		if o.PTY {
			s.c.s.requests.Go(func() { s.deliverSizes(ctx, ses, o.ID) })
		}
		s.send(v1.Control{Attached: &v1.Attached{ID: o.ID, Offsets: at}})
		v, err := ses.Follow(ctx, o.ID, sandbox.FollowOptions{
			StdoutOffset: at.Stdout, StderrOffset: at.Stderr, Stdout: s.writer(v1.FrameStdout), Stderr: s.writer(v1.FrameStderr),
			Skipped: func(stream int, n int64) { s.send(v1.Control{Skipped: &v1.Skipped{Stream: stream, Bytes: n}}) },
		})
		return v, s.c.drained(err)
	}, nil
}

// recent returns where the output of a stream begins: where the caller asked for, or near its end.
func recent(asked *int64, size int64) int64 {
	if asked != nil {
		return *asked
	}
	return max(0, size-recentOutput)
}

// deliver gives the caller's input to an operation until one of them has gone.
func (s *socket) deliver(ctx context.Context, ses *session.Session, id string) {
	buf := make([]byte, 32<<10)
	for {
		n, err := s.input.Read(buf)
		if errors.Is(err, v1.ErrInputLeft) {
			return
		}
		in := v1.Input{Data: v1.Text(buf[:n]), End: err != nil}
		if !s.give(ctx, ses, id, in) || err != nil {
			return
		}
	}
}

// deliverSizes gives the sizes of the caller's terminal to an operation.
func (s *socket) deliverSizes(ctx context.Context, ses *session.Session, id string) {
	for {
		select {
		case <-ctx.Done():
			return
		case z := <-s.resize:
			if !s.give(ctx, ses, id, v1.Input{Size: &z}) {
				return
			}
		}
	}
}

// give gives input to an operation once it has read what others gave it before, and reports whether it takes more.
func (s *socket) give(ctx context.Context, ses *session.Session, id string, in v1.Input) bool {
	for {
		err := ses.Input(ctx, id, in)
		if v1.CodeOf(err) != v1.CodeBusy {
			return err == nil
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(inputPause):
		}
	}
}
