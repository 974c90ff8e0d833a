package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
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
)

// inputPing is the time between looks whether a caller whose input nobody reads is still there. Tests shorten it.
var inputPing = 2 * time.Second

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
	// onPurpose says that the caller has closed the connection in order; otherwise it broke.
	onPurpose atomic.Bool
	// lasting says that the task's input outlives the connection.
	lasting bool
	leave   func() // removes the connection from its terminal; idempotent
}

// upgrader is the answer to a request for a WebSocket. It lets only the upgrade through: a refusal is answered as a problem.
type upgrader struct {
	http.ResponseWriter
	refused int // status of the refusal
}

// WriteHeader implements http.ResponseWriter.
func (u *upgrader) WriteHeader(status int) {
	if status == http.StatusSwitchingProtocols {
		u.ResponseWriter.WriteHeader(status)
		return
	}
	u.refused = status
}

// Write implements http.ResponseWriter.
func (u *upgrader) Write(b []byte) (int, error) {
	if u.refused != 0 {
		return len(b), nil
	}
	return u.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController through.
func (u *upgrader) Unwrap() http.ResponseWriter { return u.ResponseWriter }

// runSocket runs one cell or command over a WebSocket.
func runSocket(c *call, ses *session.Session) error {
	w := &upgrader{ResponseWriter: c.w}
	conn, err := websocket.Accept(w, c.r, &websocket.AcceptOptions{InsecureSkipVerify: c.s.cors.allows(c.r)}) // of other pages, only those of the server's own origin
	switch {
	case err != nil && w.refused == http.StatusForbidden:
		return &v1.Error{Code: v1.CodeOrigin, Op: "open WebSocket", Message: "pages of this origin may not use it", Err: err}
	case err != nil:
		return &v1.Error{Code: v1.CodeWebSocket, Op: "open WebSocket", Message: "this route speaks over a WebSocket only", Err: err}
	}
	defer conn.CloseNow() //nolint:errcheck // it is closed already, unless we failed
	conn.SetReadLimit(c.s.opts.Limits.Body)
	ctx, cancel := context.WithCancel(c.ctx())
	defer cancel()
	c.r = c.r.WithContext(ctx)
	s := &socket{c: c, conn: conn, cancel: cancel, resize: make(chan sandbox.Size, 1), leave: func() {}}
	run, err := s.first(ses)
	if err != nil {
		s.end(v1.Control{Problem: s.problem(err)})
		return nil
	}
	read := make(chan struct{})
	go func() { defer close(read); s.read(ctx) }()
	v, err := run()
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

// first reads what to run, and returns what runs it.
func (s *socket) first(ses *session.Session) (run func() (*sandbox.Verdict, error), err error) {
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
	given := 0
	for _, is := range []bool{in.Cell != nil, in.Command != nil, in.Attach != nil} {
		if is {
			given++
		}
	}
	if given != 1 {
		return nil, invalid("the first message has a cell, a command or an operation to attach to")
	}
	if in.Attach != nil {
		return s.attach(ses, *in.Attach)
	}
	return s.begin(ses, in)
}

// begin returns what runs a new task.
func (s *socket) begin(ses *session.Session, in v1.Control) (func() (*sandbox.Verdict, error), error) {
	t, err := s.task(ses, in)
	if err != nil {
		return nil, err
	}
	t.options.Stdout, t.options.Stderr = s.writer(v1.FrameStdout), s.writer(v1.FrameStderr)
	if in.Stdin {
		s.input = newInbox()
		t.options.Stdin = s.input
	}
	s.lasting = s.lasting || t.options.KeepStdin
	t.run = s.killable(t.run)
	return func() (*sandbox.Verdict, error) {
		s.send(v1.Control{Started: &v1.Started{ID: t.id}})
		return s.c.do(t)
	}, nil
}

func (s *socket) task(ses *session.Session, in v1.Control) (*task, error) {
	if in.Cell != nil {
		s.c.limit(&in.Cell.RunFields)
		t, err := newCell(ses, *in.Cell)
		*t.display = func(b sandbox.Bundle) { s.send(v1.Control{Display: &b}) }
		return t, err
	}
	if in.Command.PTY == nil {
		s.c.limit(&in.Command.RunFields)
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
		if err == nil && in.Command.OnDisconnect == "" {
			s.linger(ses, t)
		}
		s.lasting = true
	}
	return t, err
}

// linger keeps a terminal whose connection breaks for a while.
func (s *socket) linger(ses *session.Session, t *task) {
	ts, key := s.c.s.terminals, terminalKey{ses.ID(), t.id}
	ended, end := context.WithCancel(context.Background())
	if !ts.begin(key, end) {
		end()
		return // there is an operation of this id, so the task will fail
	}
	s.leave = sync.OnceFunc(func() { ts.leave(key, s.onPurpose.Load()) })
	t.gone = s.leave
	run := t.run
	t.run = func(ctx context.Context) (*sandbox.Verdict, error) {
		defer end()
		defer ts.forget(key)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(ended, cancel)()
		return run(ctx)
	}
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

// callerGone ends the input when the caller has gone, unless others may give more.
func (s *socket) callerGone() {
	switch {
	case s.input == nil:
	case s.lasting:
		s.input.leave()
	default:
		s.input.end()
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
	short, cancel := context.WithTimeout(ctx, inputPing/2) // nobody reads what would answer
	defer cancel()
	if err := s.conn.Ping(short); err != nil && !errors.Is(err, context.DeadlineExceeded) && !s.stalled.Load() {
		s.cancel()
	}
}

// read hears the caller until the connection ends.
func (s *socket) read(ctx context.Context) {
	defer s.callerGone()
	for {
		kind, raw, err := s.conn.Read(ctx)
		if err != nil {
			if s.stalled.Load() {
				s.leave()
				return
			}
			s.onPurpose.Store(websocket.CloseStatus(err) == websocket.StatusNormalClosure)
			s.cancel()
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
