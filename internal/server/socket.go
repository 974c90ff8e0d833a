package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/recluse-dev/recluse/internal/problem"

	"github.com/coder/websocket"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

const (
	firstMessage = 30 * time.Second // for the caller to say what to run
	closeWait    = 5 * time.Second  // for the last message to go out
	inputPing    = 2 * time.Second  // between looks whether a caller whose input nobody reads is still there
	pongWait     = time.Second      // less than inputPing; nobody reads what would answer
)

// socket is a cell or command that is run over a WebSocket. One goroutine reads what the caller sends; the output is written by
// whoever has it.
type socket struct {
	c      *call
	conn   *websocket.Conn
	cancel context.CancelFunc // of everything: the caller has gone
	input  *inbox             // nil: no input
	resize chan sandbox.Size
	kill   func() // ends the task, so that its verdict comes
	// stalled says that the caller took no output for so long that the connection was cut. It has not gone, so the task goes on, and the
	// caller finds the rest where it is kept; meanwhile nobody waits behind it.
	stalled atomic.Bool
	writing atomic.Int32 // writes under way
}

// runSocket runs one cell or command over a WebSocket.
func runSocket(c *call, ses *session.Session) error {
	conn, err := websocket.Accept(c.w, c.r, nil)
	if err != nil {
		c.w.problem = problem.Of(invalid("no WebSocket: %v", err))
		return nil // it has been answered
	}
	defer conn.CloseNow() //nolint:errcheck // it is closed already, unless we failed
	conn.SetReadLimit(c.s.opts.Limits.Body)
	ctx, cancel := context.WithCancel(c.ctx())
	defer cancel()
	c.r = c.r.WithContext(ctx)
	s := &socket{c: c, conn: conn, cancel: cancel, resize: make(chan sandbox.Size, 1)}
	t, err := s.first(ses)
	if err != nil {
		s.end(v1.Control{Problem: s.problem(err)})
		return nil
	}
	read := make(chan struct{})
	go func() { defer close(read); s.read(ctx) }()
	s.send(v1.Control{Started: &v1.Started{ID: t.id}})
	v, err := c.do(t)
	if v == nil && err != nil {
		s.end(v1.Control{Problem: s.problem(err)})
	} else {
		s.end(v1.Control{Verdict: v})
	}
	cancel()
	<-read
	return nil
}

func (s *socket) problem(err error) *v1.Problem {
	p := problem.Of(err)
	p.Instance = s.c.id
	s.c.w.problem = p
	return &p
}

// first reads what to run.
func (s *socket) first(ses *session.Session) (*task, error) {
	ctx, cancel := context.WithTimeout(s.c.ctx(), firstMessage)
	defer cancel()
	kind, raw, err := s.conn.Read(ctx)
	if err != nil {
		return nil, &v1.Error{Code: v1.CodeCancelled, Op: "read request", Message: "nothing was asked for", Err: err}
	}
	var in v1.Control
	if kind != websocket.MessageText {
		return nil, invalid("the first message is a text that says what to run")
	}
	if err := unmarshal(raw, &in, strict); err != nil {
		return nil, err
	}
	if (in.Cell == nil) == (in.Command == nil) {
		return nil, invalid("the first message has a cell or a command")
	}
	t, err := s.task(ses, in)
	if err != nil {
		return nil, err
	}
	t.options.Stdout, t.options.Stderr = s.writer(v1.FrameStdout), s.writer(v1.FrameStderr)
	if in.Stdin {
		s.input = newInbox()
		t.options.Stdin = s.input
	}
	t.run = s.killable(t.run)
	return t, nil
}

func (s *socket) task(ses *session.Session, in v1.Control) (*task, error) {
	if in.Cell != nil {
		t, err := newCell(ses, *in.Cell)
		*t.display = func(b sandbox.Bundle) { s.send(v1.Control{Display: &b}) }
		return t, err
	}
	t, cmd, err := newCommand(ses, *in.Command)
	if in.Command.Background {
		return nil, invalid("a command in the background is started by POST")
	}
	if p := cmd.PTY; p != nil {
		if !validSize(*p) {
			return nil, invalid("a terminal of %d rows and %d columns", p.Rows, p.Cols)
		}
		cmd.Resize = s.resize
	}
	return t, err
}

// killable lets the caller end a task and still hear its verdict.
func (s *socket) killable(run func(context.Context) (*sandbox.Verdict, error)) func(context.Context) (*sandbox.Verdict, error) {
	killed, kill := context.WithCancel(context.Background())
	s.kill = kill
	return func(ctx context.Context) (*sandbox.Verdict, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer kill()
		defer context.AfterFunc(killed, cancel)()
		defer s.dropInput()
		return run(ctx)
	}
}

func (s *socket) closeInput() {
	if s.input != nil {
		s.input.end()
	}
}

func (s *socket) dropInput() {
	if s.input != nil {
		s.input.drop()
	}
}

// take keeps input for the task. While nobody reads it and no more can be kept the caller is not heard, which is how it comes to wait; but
// that it has gone must be noticed all the same, and only writing tells.
func (s *socket) take(ctx context.Context, b []byte) {
	for {
		room := s.input.put(b)
		if room == nil {
			return
		}
		select {
		case <-room:
		case <-ctx.Done():
			return
		case <-time.After(inputPing):
			s.ping(ctx)
		}
	}
}

// ping finds out whether the caller has gone while nothing is read, and so no answer to it comes. A write under way tells as well.
func (s *socket) ping(ctx context.Context) {
	if s.writing.Load() > 0 || s.stalled.Load() {
		return
	}
	short, cancel := context.WithTimeout(ctx, pongWait)
	defer cancel()
	if err := s.conn.Ping(short); err != nil && !errors.Is(err, context.DeadlineExceeded) && !s.stalled.Load() {
		s.cancel()
	}
}

// read hears the caller until the connection ends.
func (s *socket) read(ctx context.Context) {
	defer s.closeInput()
	for {
		kind, raw, err := s.conn.Read(ctx)
		if err != nil {
			if !s.stalled.Load() {
				s.cancel()
			}
			return
		}
		if kind == websocket.MessageBinary {
			if len(raw) > 1 && raw[0] == v1.FrameStdin && s.input != nil {
				s.take(ctx, raw[1:])
			}
			continue
		}
		var in v1.Control
		if err := unmarshal(raw, &in, strict); err != nil {
			s.send(v1.Control{Problem: s.problem(err)})
			s.cancel()
			return
		}
		s.control(in)
	}
}

func (s *socket) control(in v1.Control) {
	switch {
	case in.Cancel:
		s.kill()
	case in.StdinEnd:
		s.closeInput()
	case in.Resize != nil && validSize(*in.Resize):
		z := sandbox.Size{Rows: in.Resize.Rows, Cols: in.Resize.Cols}
		for { // only the latest counts
			select {
			case s.resize <- z:
				return
			default:
			}
			select {
			case <-s.resize:
			default:
			}
		}
	}
}

func validSize(z v1.Size) bool {
	return z.Rows > 0 && z.Cols > 0 && z.Rows < 10_000 && z.Cols < 10_000
}

// send writes a message.
func (s *socket) send(m v1.Control) {
	b, err := json.Marshal(m)
	if err != nil { // ours can all be written
		s.cancel()
		return
	}
	s.write(websocket.MessageText, b)
}

// write writes a message, and cuts the connection of a caller who does not take it. One who has gone is also noticed by read.
func (s *socket) write(kind websocket.MessageType, msg []byte) {
	if s.stalled.Load() {
		return
	}
	s.writing.Add(1)
	defer s.writing.Add(-1)
	ctx, cancel := context.WithCancel(s.c.ctx())
	defer cancel()
	cut := time.AfterFunc(stallTimeout, func() {
		s.stalled.Store(true) // before the connection is cut, which read notices
		cancel()
	})
	defer cut.Stop()
	if s.conn.Write(ctx, kind, msg) != nil && !s.stalled.Load() {
		s.cancel()
	}
}

// end writes the last message and closes the connection.
func (s *socket) end(m v1.Control) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.c.ctx()), closeWait)
	defer cancel()
	b, err := json.Marshal(m)
	if err == nil && s.conn.Write(ctx, websocket.MessageText, b) == nil {
		_ = s.conn.Close(websocket.StatusNormalClosure, "") // the caller may be gone
	}
}

// frames writes output as binary messages. It never fails: what becomes of a task whose caller has gone is decided elsewhere.
type frames struct {
	s    *socket
	kind byte
}

func (s *socket) writer(kind byte) io.Writer { return &frames{s, kind} }

// Write implements io.Writer.
func (f *frames) Write(b []byte) (int, error) {
	if f.s.stalled.Load() {
		return len(b), nil
	}
	msg := make([]byte, 0, len(b)+1)
	f.s.write(websocket.MessageBinary, append(append(msg, f.kind), b...))
	return len(b), nil
}
