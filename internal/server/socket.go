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
	firstMessage = 30 * time.Second // timeout of the caller's first message
	closeWait    = 5 * time.Second  // timeout of sending the last message
)

// inputPing is the time between two pings to a caller whose input the operation does not read. Tests shorten it.
var inputPing = 2 * time.Second

// socket runs a cell or command over a WebSocket. One goroutine reads the caller's messages. The output is written by
// the goroutines that produce it.
type socket struct {
	c      *call
	conn   *websocket.Conn
	cancel context.CancelFunc // ends the request: the caller has disconnected
	input  *inbox             // nil: no input
	resize chan sandbox.Size
	kill   func() // cancels the operation; its verdict is still sent
	// stalled is set if the connection was closed because the caller read no output for stallTimeout. This is not a
	// disconnect: the operation continues, and the caller can read the rest of the output later. Further output is not
	// written to the connection.
	stalled atomic.Bool
	writing atomic.Int32 // number of writes in progress
	// closedNormally is set if the caller closed the connection with a close frame. Otherwise the connection broke.
	closedNormally atomic.Bool
	// keepInput is set if the operation's input stays open after the connection.
	keepInput bool
	detach    func() // removes the connection from its terminal; idempotent
}

// upgrader is the ResponseWriter for a WebSocket upgrade. It forwards only the upgrade. If package websocket refuses
// the request, the server answers with a problem instead.
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

// Unwrap is used by http.ResponseController.
func (u *upgrader) Unwrap() http.ResponseWriter { return u.ResponseWriter }

// acceptSocket upgrades the request to a WebSocket. Pages of the server's own origin and of the configured origins are
// allowed.
func (c *call) acceptSocket() (*websocket.Conn, error) {
	w := &upgrader{ResponseWriter: c.w}
	conn, err := websocket.Accept(w, c.r, &websocket.AcceptOptions{InsecureSkipVerify: c.s.cors.allows(c.r)})
	switch {
	case err != nil && w.refused == http.StatusForbidden:
		return nil, &v1.Error{
			Code:    v1.CodeOrigin,
			Op:      "open WebSocket",
			Message: "pages of this origin are not allowed",
			Err:     err,
		}
	case err != nil:
		return nil, &v1.Error{
			Code:    v1.CodeWebSocket,
			Op:      "open WebSocket",
			Message: "this route requires a WebSocket",
			Err:     err,
		}
	}
	return conn, nil
}

// runSocket runs one cell or command over a WebSocket.
func runSocket(c *call, ses *session.Session) error {
	conn, err := c.acceptSocket()
	if err != nil {
		return err
	}
	defer conn.CloseNow() //nolint:errcheck // it is already closed, except after an error
	conn.SetReadLimit(c.s.opts.Limits.Body)
	ctx, cancel := context.WithCancel(c.ctx())
	defer cancel()
	c.r = c.r.WithContext(ctx)
	s := &socket{c: c, conn: conn, cancel: cancel, resize: make(chan sandbox.Size, 1), detach: func() {}}
	run, err := s.readRequest(ses)
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

// readRequest reads the first message, and returns a function that runs its cell or command or attaches to its
// operation.
func (s *socket) readRequest(ses *session.Session) (run func() (*sandbox.Verdict, error), err error) {
	ctx, cancel := context.WithTimeout(s.c.ctx(), firstMessage)
	defer cancel()
	kind, raw, err := s.conn.Read(ctx)
	if err != nil {
		return nil, &v1.Error{Code: v1.CodeCancelled, Op: "read request", Message: "missing first message", Err: err}
	}
	var in v1.Control
	if kind != websocket.MessageText {
		return nil, invalid("the first message must be a text message")
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
		return nil, invalid("the first message must have exactly one of cell, command and attach")
	}
	if in.Attach != nil {
		return s.attach(ses, *in.Attach)
	}
	return s.start(ses, in)
}

// start returns a function that runs a new cell or command.
func (s *socket) start(ses *session.Session, in v1.Control) (func() (*sandbox.Verdict, error), error) {
	t, err := s.task(ses, in)
	if err != nil {
		return nil, err
	}
	t.options.Stdout, t.options.Stderr = s.writer(v1.FrameStdout), s.writer(v1.FrameStderr)
	if in.Stdin {
		s.input = newInbox()
		t.options.Stdin = s.input
	}
	s.keepInput = s.keepInput || t.options.KeepStdin
	t.run = s.killable(t.run)
	return func() (*sandbox.Verdict, error) {
		s.send(v1.Control{Started: &v1.Started{ID: t.id}})
		return s.c.do(t)
	}, nil
}

// task returns the task of the first message.
func (s *socket) task(ses *session.Session, in v1.Control) (*task, error) {
	if in.Cell != nil {
		s.c.setDefaultTimeout(&in.Cell.RunFields)
		t, err := newCell(ses, *in.Cell)
		*t.display = func(b sandbox.Bundle) { s.send(v1.Control{Display: &b}) }
		return t, err
	}
	if in.Command.PTY == nil {
		s.c.setDefaultTimeout(&in.Command.RunFields)
	}
	t, cmd, err := newCommand(ses, *in.Command)
	if in.Command.Background {
		return nil, invalid("background commands are not supported over a WebSocket; use POST")
	}
	if p := cmd.PTY; p != nil {
		if !validSize(*p) {
			return nil, invalidSize(*p)
		}
		cmd.Resize = s.resize
		if err == nil && in.Command.OnDisconnect == "" {
			s.keepTerminal(ses, t)
		}
		s.keepInput = true
	}
	return t, err
}

// keepTerminal makes the terminal continue for Options.TerminalGrace after its connection breaks.
func (s *socket) keepTerminal(ses *session.Session, t *task) {
	ts, key := s.c.s.terminals, terminalKey{ses.ID(), t.id}
	ended, end := context.WithCancel(context.Background())
	if !ts.add(key, end) {
		end()
		return // an operation with this id exists, so the task will fail
	}
	s.detach = sync.OnceFunc(func() { ts.detach(key, s.closedNormally.Load()) })
	t.onGone = s.detach
	run := t.run
	t.run = func(ctx context.Context) (*sandbox.Verdict, error) {
		defer end()
		defer ts.remove(key)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(ended, cancel)()
		return run(ctx)
	}
}

// runFunc runs a cell or command to its end.
type runFunc = func(context.Context) (*sandbox.Verdict, error)

// killable wraps run so that s.kill cancels the operation, and its verdict is still sent to the caller.
func (s *socket) killable(run runFunc) runFunc {
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

// callerGone ends the input after the caller has disconnected, unless the input stays open for other callers.
func (s *socket) callerGone() {
	switch {
	case s.input == nil:
	case s.keepInput:
		s.input.detach()
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

// bufferInput buffers input for the operation. While the buffer is full, no messages are read, so the caller must wait.
// bufferInput then pings the caller: without reading, only a failed write shows that the caller has disconnected.
func (s *socket) bufferInput(ctx context.Context, b []byte) {
	for {
		space := s.input.put(b)
		if space == nil {
			return
		}
		select {
		case <-space:
		case <-ctx.Done():
			return
		case <-time.After(inputPing):
			s.ping(ctx)
		}
	}
}

// ping cancels the request if the caller has disconnected. It is used while no messages are read, so the pong is not
// received either: a timeout is not an error. If a write is in progress, that write detects the disconnect.
func (s *socket) ping(ctx context.Context) {
	if s.writing.Load() > 0 || s.stalled.Load() {
		return
	}
	short, cancel := context.WithTimeout(ctx, inputPing/2) // the pong is not read
	defer cancel()
	if err := s.conn.Ping(short); err != nil && !errors.Is(err, context.DeadlineExceeded) && !s.stalled.Load() {
		s.cancel()
	}
}

// read reads the caller's messages until the connection ends.
func (s *socket) read(ctx context.Context) {
	defer s.callerGone()
	for {
		kind, raw, err := s.conn.Read(ctx)
		if err != nil {
			if s.stalled.Load() {
				s.detach()
				return
			}
			s.closedNormally.Store(websocket.CloseStatus(err) == websocket.StatusNormalClosure)
			s.cancel()
			return
		}
		if kind == websocket.MessageBinary {
			if len(raw) > 1 && raw[0] == v1.FrameStdin && s.input != nil {
				s.bufferInput(ctx, raw[1:])
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

// control handles a control message.
func (s *socket) control(in v1.Control) {
	switch {
	case in.Cancel:
		s.kill()
	case in.StdinEnd:
		s.closeInput()
	case in.Resize != nil && validSize(*in.Resize):
		z := sandbox.Size{Rows: in.Resize.Rows, Cols: in.Resize.Cols}
		for { // a new size replaces one that was not read yet
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

func invalidSize(z v1.Size) error {
	return invalid("invalid size of a terminal: %d rows and %d columns", z.Rows, z.Cols)
}

// send writes a control message.
func (s *socket) send(m v1.Control) {
	b, err := json.Marshal(m)
	if err != nil { // cannot happen: every Control can be encoded
		s.cancel()
		return
	}
	s.write(websocket.MessageText, b)
}

// write writes a message. If the caller does not read it within stallTimeout, write closes the connection. A disconnect
// is also detected by read.
func (s *socket) write(kind websocket.MessageType, msg []byte) {
	if s.stalled.Load() {
		return
	}
	s.writing.Add(1)
	defer s.writing.Add(-1)
	ctx, cancel := context.WithCancel(s.c.ctx())
	defer cancel()
	timer := time.AfterFunc(stallTimeout, func() {
		s.stalled.Store(true) // before the connection is closed, because read then checks it
		cancel()
	})
	defer timer.Stop()
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
		_ = s.conn.Close(websocket.StatusNormalClosure, "") // the caller may have disconnected
	}
}

// frames writes output as binary messages. Writes never fail: call.do decides what happens to an operation whose caller
// has disconnected.
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
