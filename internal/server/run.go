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

// task is a cell or a command that a request runs.
type task struct {
	kind    string // cell or command
	id      string
	keep    bool                  // it goes on when the caller goes away
	gone    func()                // called when the caller goes away, instead of an end at once; may be nil
	options *sandbox.RunOptions   // of the cell or command, for its streams
	display *func(sandbox.Bundle) // of the cell; nil: it is a command
	run     func(ctx context.Context) (*sandbox.Verdict, error)
}

func newCell(ses *session.Session, in v1.CellRequest) (*task, error) {
	cell := in.Cell()
	t := &task{kind: "cell", options: &cell.RunOptions, display: &cell.Display}
	t.run = func(ctx context.Context) (*sandbox.Verdict, error) { return ses.Cell(ctx, cell) }
	return t, t.check(in.RunFields)
}

// limit sets the time of a task whose request names none. A terminal and a command in the background have no limit then.
func (c *call) limit(f *v1.RunFields) {
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

// check rejects invalid requests, and names a task that has no name: a caller that loses the connection finds it again by that.
func (t *task) check(r v1.RunFields) error {
	switch r.OnDisconnect {
	case "", v1.OnDisconnectCancel:
	case v1.OnDisconnectKeep:
		t.keep = true
	default:
		return invalid("on_disconnect is cancel or keep, not %q", r.OnDisconnect)
	}
	if r.InlineBytes < 0 {
		return invalid("inline_bytes is negative")
	}
	t.id = cmp.Or(r.ID, t.kind[:1]+"-"+ids.Hex(10))
	if len(t.id) > 128 || strings.ContainsAny(t.id, "/\r\n") {
		return invalid("an operation's id has at most 128 bytes, no slash and no line break")
	}
	t.options.ID = t.id
	t.options.Detach = true // of the server: what becomes of it when the caller goes away is decided by do
	if r.Stdin != nil {
		t.options.Stdin = strings.NewReader(string(*r.Stdin))
		if r.KeepStdin {
			t.options.Stdin = io.MultiReader(t.options.Stdin, left{})
		}
	}
	return nil
}

// left is the end of input behind which the input stays open.
type left struct{}

// Read implements io.Reader.
func (left) Read([]byte) (int, error) { return 0, v1.ErrInputLeft }

// do runs the task to its end, in a context that ends when the caller goes away, but not when the server does: then the
// task goes on, and whoever asked finds it again.
func (c *call) do(t *task) (*sandbox.Verdict, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.ctx()))
	defer cancel()
	gone := cancel
	if t.gone != nil {
		gone = t.gone
	}
	stop := context.AfterFunc(c.ctx(), func() {
		if !t.keep && !c.s.draining() {
			gone()
		}
	})
	defer stop()
	ctx, end := c.runSpan(ctx, t.kind, t.id)
	began := time.Now()
	v, err := t.run(ctx)
	if err != nil && c.s.draining() {
		err = &v1.Error{
			Code: v1.CodeUnavailable, Op: "run " + t.kind, Message: "the server was stopped before it ended", Retry: true, Err: err,
			Remedy: "it goes on: follow operation " + t.id + " once the server is back",
		}
	}
	end(v, err)
	c.s.metrics.ran(t.kind, v, err, time.Since(began))
	return v, err
}

// finish runs a task and answers with its verdict, or as events while it runs.
func (c *call) finish(t *task) error {
	if !c.wantsEvents() {
		v, err := c.do(t)
		if v == nil && err != nil {
			return err
		}
		return c.reply(v) // a verdict comes also beside the error of output that could not be handed on
	}
	st := startStream(c)
	defer st.close()
	pos := &position{op: t.id}
	_ = st.send(pos.mark(), v1.EventStarted, v1.Started{ID: t.id}) // a caller who has gone is told by the context
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

// runCell runs a cell; with Last-Event-ID it follows one that was begun by an earlier request.
func runCell(c *call, ses *session.Session) error {
	if c.r.Header.Get(v1.HeaderLastEvent) != "" {
		return resume(c, ses)
	}
	in, err := decode[v1.CellRequest](c)
	if err != nil {
		return err
	}
	c.nameOperation(&in.RunFields)
	c.limit(&in.RunFields)
	t, err := newCell(ses, in)
	if err != nil {
		return err
	}
	if c.begunBefore(ses, t.id) {
		return c.found(ses, t.id, false)
	}
	return c.finish(t)
}

// nameOperation names an operation after its request under an idempotency key, so that a repetition finds it.
func (c *call) nameOperation(f *v1.RunFields) {
	if c.request != "" && f.ID == "" {
		f.ID = "c-" + c.request
	}
}

// begunBefore reports whether an earlier request under the same idempotency key has begun the operation.
func (c *call) begunBefore(ses *session.Session, id string) bool {
	if !c.again {
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
		c.limit(&in.RunFields)
	}
	t, cmd, err := newCommand(ses, in)
	if err != nil {
		return err
	}
	if c.begunBefore(ses, t.id) {
		return c.found(ses, t.id, in.Background)
	}
	switch {
	case in.PTY != nil:
		return invalid("a terminal needs the WebSocket at …/stream")
	case in.Background:
		return c.background(ses, t, *cmd)
	}
	return c.finish(t)
}

// found answers with a cell or command that an earlier request began.
func (c *call) found(ses *session.Session, id string, background bool) error {
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

func (c *call) background(ses *session.Session, t *task, cmd sandbox.Command) error {
	if cmd.Stdin != nil {
		return &v1.Error{
			Code: v1.CodeInvalidRequest, Op: "start command", Message: "stdin is not supported for background commands",
			Remedy: "set keep_stdin, and send it to the input route of the operation",
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

// resume follows an operation from where its Last-Event-ID says.
func resume(c *call, ses *session.Session) error {
	m, err := v1.ParseMark(c.r.Header.Get(v1.HeaderLastEvent))
	if err != nil {
		return err
	}
	return follow(c, ses, m)
}

// follow sends an operation's output from a mark on, and its verdict.
func follow(c *call, ses *session.Session, m v1.Mark) error {
	ctx, cancel := c.untilDrain()
	defer cancel()
	// An operation that nobody knows is a plain problem; so is one that this server cannot reach.
	if _, err := ses.Follow(ctx, m.Op, sandbox.FollowOptions{StdoutOffset: m.Stdout, StderrOffset: m.Stderr, NoWait: true}); err != nil {
		return err
	}
	st := startStream(c)
	defer st.close()
	pos := &position{op: m.Op, at: m.Offsets}
	stdout, stderr := &output{st: st, pos: pos, stream: 1}, &output{st: st, pos: pos, stream: 2}
	v, err := ses.Follow(ctx, m.Op, sandbox.FollowOptions{
		StdoutOffset: m.Stdout, StderrOffset: m.Stderr, Stdout: stdout, Stderr: stderr,
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
