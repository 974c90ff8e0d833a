package server

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// task is a cell or a command that a request runs.
type task struct {
	kind string // cell or command
	id   string
	keep bool // it goes on when the caller goes away
	run  func(ctx context.Context) (*sandbox.Verdict, error)
}

// check refuses what cannot be, and names what has no name: whoever loses the connection finds it again by that.
func (t *task) check(r *v1.RunFields) error {
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
	if r.ID == "" {
		r.ID = t.kind[:1] + "-" + strings.ToLower(rand.Text()[:20])
	}
	if len(r.ID) > 128 || strings.ContainsAny(r.ID, "/\r\n") {
		return invalid("an operation's id has at most 128 bytes, no slash and no line break")
	}
	t.id = r.ID
	return nil
}

// do runs the task to its end, in a context that ends when the caller goes away, but not when the server does: then the
// task goes on, and whoever asked finds it again.
func (c *call) do(t *task) (*sandbox.Verdict, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.ctx()))
	defer cancel()
	stop := context.AfterFunc(c.ctx(), func() {
		if !t.keep && !c.s.draining() {
			cancel()
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
func (c *call) finish(t *task, stdout, stderr **output, display *func(sandbox.Bundle)) error {
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
	*stdout, *stderr = &output{st: st, pos: pos, stream: 1}, &output{st: st, pos: pos, stream: 2}
	if display != nil {
		*display = func(b sandbox.Bundle) { _ = st.send("", v1.EventDisplay, b) }
	}
	v, err := c.do(t)
	(*stdout).flush()
	(*stderr).flush()
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
	t := &task{kind: "cell"}
	if err := t.check(&in.RunFields); err != nil {
		return err
	}
	cell := in.Cell()
	cell.Detach = true // of the server: the caller's own fate is decided by do
	if in.Stdin != nil {
		cell.Stdin = strings.NewReader(string(*in.Stdin))
	}
	var stdout, stderr *output
	t.run = func(ctx context.Context) (*sandbox.Verdict, error) {
		if stdout != nil {
			cell.Stdout, cell.Stderr = stdout, stderr
		}
		return ses.Cell(ctx, cell)
	}
	return c.finish(t, &stdout, &stderr, &cell.Display)
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
	t := &task{kind: "command"}
	if key := c.r.Header.Get(v1.HeaderIdempotency); key != "" && in.ID == "" { // the same each time, so that a repetition finds it
		sum := sha256.Sum256([]byte(c.who.tenant + "\x00" + key))
		in.ID = "c-" + hex.EncodeToString(sum[:16])
	}
	if err := t.check(&in.RunFields); err != nil {
		return err
	}
	if c.again {
		if _, err := ses.Follow(c.ctx(), t.id, sandbox.FollowOptions{NoWait: true}); err == nil {
			return c.found(ses, t.id, in.Background)
		}
	}
	if in.PTY != nil {
		return invalid("a terminal needs the WebSocket at …/stream")
	}
	cmd := in.Command()
	cmd.Detach = true
	if in.Stdin != nil {
		cmd.Stdin = strings.NewReader(string(*in.Stdin))
	}
	if in.Background {
		return c.background(ses, t, cmd)
	}
	var stdout, stderr *output
	t.run = func(ctx context.Context) (*sandbox.Verdict, error) {
		if stdout != nil {
			cmd.Stdout, cmd.Stderr = stdout, stderr
		}
		return ses.Run(ctx, cmd)
	}
	return c.finish(t, &stdout, &stderr, nil)
}

// found answers with a command that an earlier request began.
func (c *call) found(ses *session.Session, id string, background bool) error {
	if background {
		c.status = 202
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
		return invalid("a command in the background reads no input")
	}
	ctx, end := c.runSpan(c.ctx(), "start "+t.kind, t.id)
	id, err := ses.Start(ctx, cmd)
	end(nil, err)
	if err != nil {
		return err
	}
	c.status = 202
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
