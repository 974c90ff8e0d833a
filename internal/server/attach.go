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
	// recentOutput is how many bytes of each stream's existing output a caller that attaches receives first.
	recentOutput = 64 << 10
	// inputPause is the time between attempts to send input to an operation that has not yet read the input of another
	// caller.
	inputPause = 50 * time.Millisecond
)

// attach returns a function that follows an operation which an earlier connection started, and that forwards the
// caller's input to it.
func (s *socket) attach(ses *session.Session, in v1.Attach) (func() (*sandbox.Verdict, error), error) {
	o, err := ses.Operation(s.c.ctx(), in.ID)
	if err != nil {
		return nil, err
	}
	at := v1.Offsets{Stdout: startOffset(in.Stdout, o.Stdout), Stderr: startOffset(in.Stderr, o.Stderr)}
	if at.Stdout < 0 || at.Stderr < 0 {
		return nil, invalid("an offset is negative")
	}
	if o.Input {
		s.input, s.keepInput = newInbox(), true
	}
	s.detach = s.cancel                                 // closes a stalled connection; the caller can attach again
	s.kill = func() { _ = ses.Cancel(s.c.ctx(), o.ID) } // if it fails, the verdict shows it
	return func() (*sandbox.Verdict, error) {
		ctx, cancel := s.c.untilDrain()
		defer cancel()
		ts, key := s.c.s.terminals, terminalKey{ses.ID(), o.ID}
		ts.attach(key)
		defer func() { ts.detach(key, s.closedNormally.Load()) }()
		if s.input != nil {
			s.c.s.requests.Go(func() { s.forwardInput(ctx, ses, o.ID) })
			defer s.input.detach()
		}
		if o.PTY {
			s.c.s.requests.Go(func() { s.forwardSizes(ctx, ses, o.ID) })
		}
		s.send(v1.Control{Attached: &v1.Attached{ID: o.ID, Offsets: at}})
		v, err := ses.Follow(ctx, o.ID, sandbox.FollowOptions{
			StdoutOffset: at.Stdout,
			StderrOffset: at.Stderr,
			Stdout:       s.writer(v1.FrameStdout),
			Stderr:       s.writer(v1.FrameStderr),
			Skipped: func(stream int, n int64) {
				s.send(v1.Control{Skipped: &v1.Skipped{Stream: stream, Bytes: n}})
			},
		})
		return v, s.c.drained(err)
	}, nil
}

// startOffset returns the offset at which the output of a stream starts: the requested one, or recentOutput before its
// end.
func startOffset(requested *int64, size int64) int64 {
	if requested != nil {
		return *requested
	}
	return max(0, size-recentOutput)
}

// forwardInput sends the caller's input to an operation until the caller has disconnected or the operation accepts no
// more input.
func (s *socket) forwardInput(ctx context.Context, ses *session.Session, id string) {
	buf := make([]byte, 32<<10)
	for {
		n, err := s.input.Read(buf)
		if errors.Is(err, v1.ErrInputLeft) {
			return
		}
		in := v1.Input{Data: v1.Text(buf[:n]), End: err != nil}
		if !s.sendInput(ctx, ses, id, in) || err != nil {
			return
		}
	}
}

// forwardSizes sends the sizes of the caller's terminal to an operation.
func (s *socket) forwardSizes(ctx context.Context, ses *session.Session, id string) {
	for {
		select {
		case <-ctx.Done():
			return
		case z := <-s.resize:
			if !s.sendInput(ctx, ses, id, v1.Input{Size: &z}) {
				return
			}
		}
	}
}

// sendInput sends input to an operation as soon as the operation has read earlier input of other callers. It reports
// whether the operation accepts more.
func (s *socket) sendInput(ctx context.Context, ses *session.Session, id string, in v1.Input) bool {
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
