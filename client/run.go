package client

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// running is one cell or command while it is waited for.
type running struct {
	v1.RunOptions
	s       *Session
	op      string // for errors
	body    v1.Control
	display func(v1.Bundle)
	resize  <-chan v1.Size
	pty     bool

	unknown  bool       // the connection broke and the server does not know the operation, so it never began
	at       v1.Offsets // what has been handed on
	writeErr error
	onSkip   func(stream int, bytes int64) // hears of output that is no longer kept
	onStuck  func()                        // called when the output cannot be handed on
}

// Cell runs code to its end. A failure of the code is in the verdict; err is not nil only when the machinery failed. When ctx ends the
// cell is interrupted, and the verdict says so.
func (s *Session) Cell(ctx context.Context, c v1.Cell) (*v1.Verdict, error) {
	if len(c.Code) > v1.MaxCode {
		return nil, &v1.Error{
			Code: v1.CodeTooLarge, Op: "run cell", Message: fmt.Sprintf("code of %d bytes; at most %d MiB are taken", len(c.Code), v1.MaxCode>>20),
			Remedy: "write it to a file and import that",
		}
	}
	c.ID = cmp.Or(c.ID, randomID("x-"))
	in := v1.NewCellRequest(c)
	r := &running{RunOptions: c.RunOptions, s: s, op: "run cell", body: v1.Control{Cell: &in}, display: c.Display}
	return r.run(ctx)
}

// Run runs a command to its end. When ctx ends, the command is cancelled with everything it started, and the verdict says so.
func (s *Session) Run(ctx context.Context, c v1.Command) (*v1.Verdict, error) {
	c.ID = cmp.Or(c.ID, randomID("c-"))
	in := v1.NewCommandRequest(c)
	r := &running{RunOptions: c.RunOptions, s: s, op: "run command", body: v1.Control{Command: &in}, resize: c.Resize, pty: c.PTY != nil}
	return r.run(ctx)
}

// Start runs a command in the background and gives its id as soon as it runs. Stdin is not read.
func (s *Session) Start(ctx context.Context, c v1.Command) (string, error) {
	c.ID = cmp.Or(c.ID, randomID("c-"))
	in := v1.NewCommandRequest(c)
	in.Background = true
	out, err := ask[v1.Started](ctx, s.c, post("start command", s.path+"/commands", in).repeatable())
	return out.ID, err
}

// run waits for the verdict in the way that the streams need.
func (r *running) run(ctx context.Context) (*v1.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return nil, &v1.Error{Code: v1.CodeCancelled, Op: r.op, Message: "given up before it began", Err: err}
	}
	// The request outlives ctx for as long as the verdict of what was cancelled takes.
	way, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	stop := context.AfterFunc(ctx, func() { r.giveUp(way, leave) })
	defer stop()
	send := r.plain
	if r.Stdin != nil || r.pty || r.Stdout != nil || r.Stderr != nil || r.display != nil {
		send = r.socket
	}
	v, err := send(way)
	if r.unknown && r.Stdin == nil && !r.pty {
		v, err = send(way)
	}
	if err != nil && ctx.Err() != nil && way.Err() != nil {
		return nil, &v1.Error{Code: v1.CodeCancelled, Op: r.op, Message: "given up, and the server did not tell how it ended", Err: ctx.Err()}
	}
	if err == nil && r.writeErr != nil {
		return v, &v1.Error{Code: v1.CodeInternal, Op: r.op, Message: "the output could not be handed on", Err: r.writeErr}
	}
	return v, err
}

// giveUp cancels the operation, so that its verdict comes. One that has not begun is given up with the connection: the server then
// does not begin it.
func (r *running) giveUp(way context.Context, leave func()) {
	told, cancel := context.WithTimeout(way, cancelWait)
	defer cancel()
	if r.s.Cancel(told, r.ID) != nil {
		leave()
		return
	}
	t := time.NewTimer(verdictWait + r.KillGrace)
	defer t.Stop()
	select {
	case <-t.C:
		leave()
	case <-way.Done():
	}
}

// plain waits for the verdict alone.
func (r *running) plain(ctx context.Context) (*v1.Verdict, error) {
	q := post(r.op, r.s.path+"/cells", r.body.Cell)
	if r.body.Command != nil {
		q = post(r.op, r.s.path+"/commands", r.body.Command)
	}
	v, err := ask[v1.Verdict](ctx, r.s.c, q)
	if r.interrupted(err) {
		return r.again(ctx, err)
	}
	if err != nil {
		return nil, err
	}
	return &v, nil
}

// interrupted reports an error behind which the operation may go on.
func interrupted(err error) bool { return v1.CodeOf(err) == v1.CodeUnavailable }

// away reports an error of a server that cannot be reached, or is being stopped: its successor may know the operation.
func away(err error) bool { return interrupted(err) || v1.CodeOf(err) == v1.CodeClosing }

// interrupted reports an error after which the operation may still run. If it was sent a second time, the first
// request may have arrived late: the operation then exists.
func (r *running) interrupted(err error) bool {
	return interrupted(err) || r.unknown && v1.CodeOf(err) == v1.CodeOperationExists
}

// again finds an operation whose connection was lost. If the server does not know the operation, again sets r.unknown
// and returns the first error.
//
// A common cause is a server that was restarted: a request that is sent over an idle connection to the old server
// fails, unless the client has noticed that the connection is closed.
func (r *running) again(ctx context.Context, lost error) (*v1.Verdict, error) {
	p := r.s.c.patience()
	for p.wait(ctx) {
		v, err := r.follow(ctx)
		switch {
		case err == nil:
			return v, nil
		case v1.CodeOf(err) == v1.CodeNotFound:
			r.unknown = true
			return nil, lost
		case !away(err):
			return nil, err
		}
	}
	return nil, lost
}

// follow goes on from where the output was handed on so far, once.
func (r *running) follow(ctx context.Context) (*v1.Verdict, error) {
	q := r.s.output(r.ID, r.at)
	q.op, q.header = r.op, map[string]string{"Accept": v1.EventStream}
	res, err := r.s.c.once(ctx, q, nil)
	if err != nil {
		return nil, err
	}
	return r.listen(ctx, res)
}

// listen hands on what the server tells until the verdict.
func (r *running) listen(ctx context.Context, res *http.Response) (*v1.Verdict, error) {
	defer res.Body.Close()
	in := v1.NewEventReader(res.Body)
	for {
		e, err := in.Next()
		if err != nil {
			return nil, unreachable(ctx, r.op, err)
		}
		switch e.Kind {
		case v1.EventVerdict:
			v := &v1.Verdict{}
			if err := e.Decode(v); err != nil {
				return nil, malformed(r.op, err)
			}
			_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 4096)) // so that the connection is used again
			return v, nil
		case v1.EventProblem:
			var p v1.Problem
			if err := e.Decode(&p); err != nil {
				return nil, malformed(r.op, err)
			}
			return nil, p.Err()
		default:
			if err := r.hear(e); err != nil {
				return nil, malformed(r.op, err)
			}
		}
	}
}

// hear hands on one event.
func (r *running) hear(e v1.StreamEvent) error {
	switch e.Kind {
	case v1.EventStdout, v1.EventStderr:
		var c v1.Chunk
		if err := e.Decode(&c); err != nil {
			return err
		}
		r.output(e.Kind == v1.EventStderr, []byte(c.Data))
	case v1.EventSkipped:
		var k v1.Skipped
		if err := e.Decode(&k); err != nil {
			return err
		}
		r.skipped(k)
	case v1.EventDisplay:
		if r.display == nil {
			return nil
		}
		var b v1.Bundle
		if err := e.Decode(&b); err != nil {
			return err
		}
		r.display(b)
	}
	return nil
}

func (r *running) skipped(k v1.Skipped) {
	if k.Stream == 2 {
		r.at.Stderr += k.Bytes
	} else {
		r.at.Stdout += k.Bytes
	}
	if r.onSkip != nil {
		r.onSkip(k.Stream, k.Bytes)
	}
}

// output hands on a piece. Whoever cannot take it misses the rest; the operation goes on.
func (r *running) output(stderr bool, b []byte) {
	w, at := r.Stdout, &r.at.Stdout
	if stderr {
		w, at = r.Stderr, &r.at.Stderr
	}
	*at += int64(len(b))
	if w != nil && r.writeErr == nil {
		if _, r.writeErr = w.Write(b); r.writeErr != nil && r.onStuck != nil {
			r.onStuck()
		}
	}
}

func malformed(op string, err error) error {
	return &v1.Error{Code: v1.CodeProtocol, Op: op, Message: "the server said something that cannot be read", Err: err}
}

// Follow gives an operation's output from absolute offsets on, and its verdict once it has ended. When ctx ends the operation goes on.
// With NoWait both results are nil while the operation runs; otherwise exactly one is.
func (s *Session) Follow(ctx context.Context, id string, o v1.FollowOptions) (*v1.Verdict, error) {
	if o.NoWait {
		return s.peek(ctx, id, o)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	f := &running{
		RunOptions: v1.RunOptions{ID: id, Stdout: o.Stdout, Stderr: o.Stderr},
		s:          s,
		op:         "follow",
		at:         v1.Offsets{Stdout: o.StdoutOffset, Stderr: o.StderrOffset},
		onSkip:     o.Skipped,
		onStuck:    stop,
	}
	p := s.c.patience()
	for {
		before := f.at
		v, err := f.follow(ctx)
		if f.writeErr != nil {
			return nil, &v1.Error{Code: v1.CodeInternal, Op: "follow", Message: "the output could not be handed on", Err: f.writeErr}
		}
		if err == nil || !interrupted(err) {
			return v, err
		}
		if f.at != before {
			p = s.c.patience() // it moved
		}
		if !p.wait(ctx) {
			return nil, err
		}
	}
}

// output asks for the output of an operation from offsets on.
func (s *Session) output(id string, at v1.Offsets) request {
	q := url.Values{"stdout": {strconv.FormatInt(at.Stdout, 10)}, "stderr": {strconv.FormatInt(at.Stderr, 10)}}
	return get("follow", s.path+s.operation(id)+"/output", q)
}

// peek gives what is there now, answer by answer.
func (s *Session) peek(ctx context.Context, id string, o v1.FollowOptions) (*v1.Verdict, error) {
	at := v1.Offsets{Stdout: o.StdoutOffset, Stderr: o.StderrOffset}
	for {
		out, err := ask[v1.Followed](ctx, s.c, s.output(id, at))
		if err != nil {
			return nil, err
		}
		if o.Skipped != nil {
			if out.Skipped.Stdout > 0 {
				o.Skipped(1, out.Skipped.Stdout)
			}
			if out.Skipped.Stderr > 0 {
				o.Skipped(2, out.Skipped.Stderr)
			}
		}
		for _, p := range []struct {
			w io.Writer
			t v1.Text
		}{{o.Stdout, out.Stdout}, {o.Stderr, out.Stderr}} {
			if p.w == nil || p.t == "" {
				continue
			}
			if _, err := io.WriteString(p.w, string(p.t)); err != nil {
				return nil, &v1.Error{Code: v1.CodeInternal, Op: "follow", Message: "the output could not be handed on", Err: err}
			}
		}
		if out.Verdict != nil || out.Running || out.Next == at {
			return out.Verdict, nil
		}
		at = out.Next
	}
}
