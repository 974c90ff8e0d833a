package server

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// task is a cell or command that a request is about to run. Once it runs, it is an operation of the sandbox.
type task struct {
	kind    string                // cell or command
	id      string                // id of the operation
	keep    bool                  // the operation continues when the caller disconnects
	onGone  func()                // called when the caller disconnects; nil: the operation is cancelled
	options *sandbox.RunOptions   // options of the cell or command; its streams are set later
	display *func(sandbox.Bundle) // Display of the cell; nil for a command
	run     func(ctx context.Context) (*sandbox.Verdict, error)
}

func newCell(ses *session.Session, in v1.CellRequest) (*task, error) {
	cell := in.Cell()
	t := &task{kind: "cell", options: &cell.RunOptions, display: &cell.Display}
	t.run = func(ctx context.Context) (*sandbox.Verdict, error) { return ses.Cell(ctx, cell) }
	return t, t.check(in.RunFields)
}

// setDefaultTimeout sets the timeout of a request without one. It is not called for terminals and background commands,
// which have no timeout by default.
func (c *call) setDefaultTimeout(f *v1.RunFields) {
	if f.Timeout == 0 {
		f.Timeout = v1.Duration(c.s.opts.Limits.Run)
	}
}

func newCommand(ses *session.Session, in v1.CommandRequest) (*task, *sandbox.Command, error) {
	cmd := in.Command()
	t := &task{kind: "command", options: &cmd.RunOptions}
	t.run = func(ctx context.Context) (*sandbox.Verdict, error) { return ses.Run(ctx, cmd) }
	return t, &cmd, t.check(in.RunFields)
}

// check rejects invalid requests, and sets the options of the task. A task without an id gets a new one, by which a
// caller that loses the connection finds the operation again.
func (t *task) check(r v1.RunFields) error {
	switch r.OnDisconnect {
	case "", v1.OnDisconnectCancel:
	case v1.OnDisconnectKeep:
		t.keep = true
	default:
		return invalid("invalid on_disconnect %q: want cancel or keep", r.OnDisconnect)
	}
	if r.InlineBytes < 0 {
		return invalid("inline_bytes is negative")
	}
	t.id = cmp.Or(r.ID, t.kind[:1]+"-"+ids.Hex(10))
	if len(t.id) > 128 || strings.ContainsAny(t.id, "/\r\n") {
		return invalid("invalid operation id: want at most 128 bytes without slashes and line breaks")
	}
	t.options.ID = t.id
	t.options.Detach = true // the operation outlives the server; do cancels it when the caller disconnects
	if r.Stdin != nil {
		t.options.Stdin = strings.NewReader(string(*r.Stdin))
		if r.KeepStdin {
			t.options.Stdin = io.MultiReader(t.options.Stdin, openEnd{})
		}
	}
	return nil
}

// openEnd is a reader without data that leaves the input open.
type openEnd struct{}

// Read implements io.Reader.
func (openEnd) Read([]byte) (int, error) { return 0, v1.ErrInputLeft }

// do runs the task to its end. When the caller disconnects, the operation is cancelled. When the server stops, the
// operation continues, and the caller can follow it after the restart.
func (c *call) do(t *task) (*sandbox.Verdict, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.ctx()))
	defer cancel()
	onGone := cancel
	if t.onGone != nil {
		onGone = t.onGone
	}
	stop := context.AfterFunc(c.ctx(), func() {
		if !t.keep && !c.s.draining() {
			onGone()
		}
	})
	defer stop()
	ctx, end := c.runSpan(ctx, t.kind, t.id)
	began := time.Now()
	v, err := t.run(ctx)
	if err != nil && c.s.draining() {
		err = &v1.Error{
			Code:    v1.CodeUnavailable,
			Op:      "run " + t.kind,
			Message: "the server was stopped before the " + t.kind + " ended; it continues",
			Remedy:  "follow operation " + t.id + " when the server runs again",
			Retry:   true,
			Err:     err,
		}
	}
	end(v, err)
	c.s.metrics.ran(t.kind, v, err, time.Since(began))
	return v, err
}

// runAndReply runs a task and answers with its verdict, or with events while it runs.
func (c *call) runAndReply(t *task) error {
	if !c.wantsEvents() {
		v, err := c.do(t)
		if v == nil && err != nil {
			return err
		}
		return c.reply(v) // there is also a verdict if only forwarding the output failed
	}
	st := startStream(c)
	defer st.close()
	pos := &position{op: t.id}
	_ = st.send(pos.mark(), v1.EventStarted, v1.Started{ID: t.id}) // if the caller has disconnected, ctx has ended
	stdout, stderr := &output{st: st, pos: pos, stream: 1}, &output{st: st, pos: pos, stream: 2}
	t.options.Stdout, t.options.Stderr = stdout, stderr
	if t.display != nil {
		*t.display = func(b sandbox.Bundle) { _ = st.send("", v1.EventDisplay, b) }
	}
	v, err := c.do(t)
	stdout.flush()
	stderr.flush()
	if v == nil && err != nil {
		st.problem(err)
		return nil
	}
	_ = st.send(pos.mark(), v1.EventVerdict, v)
	return nil
}

// runCell runs a cell. With Last-Event-ID, it follows a cell that an earlier request started.
func runCell(c *call, ses *session.Session) error {
	if c.r.Header.Get(v1.HeaderLastEvent) != "" {
		return resume(c, ses)
	}
	in, err := decode[v1.CellRequest](c)
	if err != nil {
		return err
	}
	c.nameOperation(&in.RunFields)
	c.setDefaultTimeout(&in.RunFields)
	t, err := newCell(ses, in)
	if err != nil {
		return err
	}
	if c.startedBefore(ses, t.id) {
		return c.replyExisting(ses, t.id, false)
	}
	return c.runAndReply(t)
}

// nameOperation derives the id of an operation from the idempotency key of the request, so that a repeated request
// finds the operation.
func (c *call) nameOperation(f *v1.RunFields) {
	if c.request != "" && f.ID == "" {
		f.ID = "c-" + c.request
	}
}

// startedBefore reports whether an earlier request with the same idempotency key started the operation.
func (c *call) startedBefore(ses *session.Session, id string) bool {
	if !c.repeated {
		return false
	}
	_, err := ses.Follow(c.ctx(), id, sandbox.FollowOptions{NoWait: true})
	return err == nil
}

// runCommand runs a command to its end, or starts it in the background.
func runCommand(c *call, ses *session.Session) error {
	if c.r.Header.Get(v1.HeaderLastEvent) != "" {
		return resume(c, ses)
	}
	in, err := decode[v1.CommandRequest](c)
	if err != nil {
		return err
	}
	c.nameOperation(&in.RunFields)
	if !in.Background {
		c.setDefaultTimeout(&in.RunFields)
	}
	t, cmd, err := newCommand(ses, in)
	if err != nil {
		return err
	}
	if c.startedBefore(ses, t.id) {
		return c.replyExisting(ses, t.id, in.Background)
	}
	switch {
	case in.PTY != nil:
		return invalid("a terminal requires the WebSocket at …/stream")
	case in.Background:
		return c.background(ses, t, *cmd)
	}
	return c.runAndReply(t)
}

// replyExisting answers with an operation that an earlier request started.
func (c *call) replyExisting(ses *session.Session, id string, background bool) error {
	if background {
		c.status = http.StatusAccepted
		return c.reply(v1.Started{ID: id})
	}
	if c.wantsEvents() {
		return follow(c, ses, v1.Mark{Op: id})
	}
	ctx, cancel := c.untilDrain()
	defer cancel()
	v, err := ses.Follow(ctx, id, sandbox.FollowOptions{})
	if err != nil {
		return c.drained(err)
	}
	return c.reply(v)
}

// background starts a command in the background, and answers with its id.
func (c *call) background(ses *session.Session, t *task, cmd sandbox.Command) error {
	if cmd.Stdin != nil {
		return &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "start command",
			Message: "stdin is not supported for background commands",
			Remedy:  "set keep_stdin, and send the input to the input route of the operation",
		}
	}
	ctx, end := c.runSpan(c.ctx(), "start "+t.kind, t.id)
	id, err := ses.Start(ctx, cmd)
	end(nil, err)
	if err != nil {
		return err
	}
	c.status = http.StatusAccepted
	return c.reply(v1.Started{ID: id})
}

// resume follows an operation from the position in Last-Event-ID.
func resume(c *call, ses *session.Session) error {
	m, err := v1.ParseMark(c.r.Header.Get(v1.HeaderLastEvent))
	if err != nil {
		return err
	}
	return follow(c, ses, m)
}

// follow streams an operation's output from a mark on, and then its verdict.
func follow(c *call, ses *session.Session, m v1.Mark) error {
	ctx, cancel := c.untilDrain()
	defer cancel()
	// If the operation is unknown or cannot be reached, the answer is a problem instead of an event stream.
	probe := sandbox.FollowOptions{StdoutOffset: m.Stdout, StderrOffset: m.Stderr, NoWait: true}
	if _, err := ses.Follow(ctx, m.Op, probe); err != nil {
		return err
	}
	st := startStream(c)
	defer st.close()
	pos := &position{op: m.Op, at: m.Offsets}
	stdout, stderr := &output{st: st, pos: pos, stream: 1}, &output{st: st, pos: pos, stream: 2}
	v, err := ses.Follow(ctx, m.Op, sandbox.FollowOptions{
		StdoutOffset: m.Stdout,
		StderrOffset: m.Stderr,
		Stdout:       stdout,
		Stderr:       stderr,
		Skipped: func(stream int, n int64) {
			pos.advance(stream, n)
			_ = st.send(pos.mark(), v1.EventSkipped, v1.Skipped{Stream: stream, Bytes: n})
		},
	})
	stdout.flush()
	stderr.flush()
	if err != nil {
		err = c.drained(err)
		if !errors.Is(err, context.Canceled) {
			st.problem(err)
		}
		return nil
	}
	_ = st.send(pos.mark(), v1.EventVerdict, v)
	return nil
}
