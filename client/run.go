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

// running is a cell or command whose verdict the client waits for.
type running struct {
	v1.RunOptions
	s       *Session
	op      string // operation name in errors
	body    v1.Control
	display func(v1.Bundle)
	resize  <-chan v1.Size
	pty     bool

	unknown      bool       // the connection broke and the server does not know the operation, so it never began
	at           v1.Offsets // how much output has been written
	writeErr     error
	onSkip       func(stream int, bytes int64) // called for output that is no longer kept
	onWriteError func()                        // called when the output cannot be written
}

// Cell runs code and waits for its verdict. A failure of the code is in the verdict; an error means that recluse
// failed. When ctx ends, the cell is interrupted and the verdict has the reason.
func (s *Session) Cell(ctx context.Context, c v1.Cell) (*v1.Verdict, error) {
	if len(c.Code) > v1.MaxCode {
		return nil, &v1.Error{
			Code:    v1.CodeTooLarge,
			Op:      "run cell",
			Message: fmt.Sprintf("the code has %d bytes; the maximum is %d MiB", len(c.Code), v1.MaxCode>>20),
			Remedy:  "write the code to a file in the session and import it",
		}
	}
	c.ID = cmp.Or(c.ID, randomID("x-"))
	in := v1.NewCellRequest(c)
	r := &running{RunOptions: c.RunOptions, s: s, op: "run cell", body: v1.Control{Cell: &in}, display: c.Display}
	return r.run(ctx)
}

// Run runs a command and waits for its verdict. When ctx ends, the command and everything it started is cancelled, and
// the verdict has the reason.
func (s *Session) Run(ctx context.Context, c v1.Command) (*v1.Verdict, error) {
	c.ID = cmp.Or(c.ID, randomID("c-"))
	in := v1.NewCommandRequest(c)
	r := &running{
		RunOptions: c.RunOptions,
		s:          s,
		op:         "run command",
		body:       v1.Control{Command: &in},
		resize:     c.Resize,
		pty:        c.PTY != nil,
	}
	return r.run(ctx)
}

// Start starts a command in the background and returns its id. Stdin is not read.
func (s *Session) Start(ctx context.Context, c v1.Command) (string, error) {
	c.ID = cmp.Or(c.ID, randomID("c-"))
	in := v1.NewCommandRequest(c)
	in.Background = true
	out, err := callJSON[v1.Started](ctx, s.c, post("start command", s.path+"/commands", in).repeatable())
	return out.ID, err
}

// run sends the operation and waits for its verdict: over a WebSocket if there are streams, else with one request.
func (r *running) run(ctx context.Context) (*v1.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return nil, &v1.Error{Code: v1.CodeCancelled, Op: r.op, Message: "cancelled before it began", Err: err}
	}
	// The request outlives ctx until the verdict of the cancelled operation has arrived.
	requestCtx, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()
	stop := context.AfterFunc(ctx, func() { r.cancel(requestCtx, abort) })
	defer stop()
	send := r.plain
	if r.Stdin != nil || r.pty || r.Stdout != nil || r.Stderr != nil || r.display != nil {
		send = r.socket
	}
	v, err := send(requestCtx)
	if r.unknown && r.Stdin == nil && !r.pty {
		v, err = send(requestCtx)
	}
	if err != nil && ctx.Err() != nil && requestCtx.Err() != nil {
		return nil, &v1.Error{
			Code:    v1.CodeCancelled,
			Op:      r.op,
			Message: "cancelled, and the server did not report how the operation ended",
			Err:     ctx.Err(),
		}
	}
	if err == nil && r.writeErr != nil {
		return v, unwrittenOutput(r.op, r.writeErr)
	}
	return v, err
}

func unwrittenOutput(op string, err error) error {
	return &v1.Error{Code: v1.CodeInternal, Op: op, Message: "cannot write the output", Err: err}
}

// cancel cancels the operation on the server, so that its verdict arrives. If that fails, or the verdict does not
// arrive in time, it aborts the request. The server does not begin an operation whose request was aborted before.
func (r *running) cancel(requestCtx context.Context, abort func()) {
	ctx, cancel := context.WithTimeout(requestCtx, cancelWait)
	defer cancel()
	if r.s.Cancel(ctx, r.ID) != nil {
		abort()
		return
	}
	t := time.NewTimer(verdictWait + r.KillGrace)
	defer t.Stop()
	select {
	case <-t.C:
		abort()
	case <-requestCtx.Done():
	}
}

// plain sends the operation and waits for its verdict with one request, without streams.
func (r *running) plain(ctx context.Context) (*v1.Verdict, error) {
	q := post(r.op, r.s.path+"/cells", r.body.Cell)
	if r.body.Command != nil {
		q = post(r.op, r.s.path+"/commands", r.body.Command)
	}
	v, err := callJSON[v1.Verdict](ctx, r.s.c, q)
	if r.interrupted(err) {
		return r.reconnect(ctx, err)
	}
	if err != nil {
		return nil, err
	}
	return &v, nil
}

// interrupted reports whether err means that the connection was lost. The operation may still run.
func interrupted(err error) bool { return v1.CodeOf(err) == v1.CodeUnavailable }

// serverGone reports whether err means that the server cannot be reached or is being stopped. The next server may know
// the operation.
func serverGone(err error) bool { return interrupted(err) || v1.CodeOf(err) == v1.CodeClosing }

// interrupted reports whether the operation may still run after err. If the operation was sent a second time, the first
// request may have arrived late, so that the operation already exists.
func (r *running) interrupted(err error) bool {
	return interrupted(err) || r.unknown && v1.CodeOf(err) == v1.CodeOperationExists
}

// reconnect finds an operation whose connection was lost, and waits for its verdict. If the server does not know the
// operation, reconnect sets r.unknown and returns the first error.
//
// A common cause is a server that was restarted: a request that is sent over an idle connection to the old server
// fails, unless the client has noticed that the connection is closed.
func (r *running) reconnect(ctx context.Context, lost error) (*v1.Verdict, error) {
	retry := r.s.c.retryTimer()
	for retry.wait(ctx) {
		v, err := r.follow(ctx)
		switch {
		case err == nil:
			return v, nil
		case v1.CodeOf(err) == v1.CodeNotFound:
			r.unknown = true
			return nil, lost
		case !serverGone(err):
			return nil, err
		}
	}
	return nil, lost
}

// follow requests the output from the current offsets on, once, and waits for the verdict.
func (r *running) follow(ctx context.Context) (*v1.Verdict, error) {
	q := r.s.output(r.ID, r.at)
	q.op, q.header = r.op, map[string]string{"Accept": v1.EventStream}
	res, err := r.s.c.sendOnce(ctx, q, nil)
	if err != nil {
		return nil, err
	}
	return r.listen(ctx, res)
}

// listen handles the events of an answer until the verdict.
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
			_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 4096)) // so that the connection can be reused
			return v, nil
		case v1.EventProblem:
			var p v1.Problem
			if err := e.Decode(&p); err != nil {
				return nil, malformed(r.op, err)
			}
			return nil, p.Err()
		default:
			if err := r.handle(e); err != nil {
				return nil, malformed(r.op, err)
			}
		}
	}
}

// handle passes the content of one event to the writers and functions of the caller.
func (r *running) handle(e v1.StreamEvent) error {
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

// output writes a piece of the output to the caller's writer. After a write error, further output is dropped; the
// operation continues.
func (r *running) output(stderr bool, b []byte) {
	w, at := r.Stdout, &r.at.Stdout
	if stderr {
		w, at = r.Stderr, &r.at.Stderr
	}
	*at += int64(len(b))
	if w != nil && r.writeErr == nil {
		if _, r.writeErr = w.Write(b); r.writeErr != nil && r.onWriteError != nil {
			r.onWriteError()
		}
	}
}

func malformed(op string, err error) error {
	return &v1.Error{Code: v1.CodeProtocol, Op: op, Message: "invalid answer of the server", Err: err}
}

// Follow writes the output of an operation from the given offsets on, and returns its verdict when it has ended. When
// ctx ends, the operation continues. With NoWait, both results are nil while the operation runs; otherwise exactly one
// is nil.
func (s *Session) Follow(ctx context.Context, id string, o v1.FollowOptions) (*v1.Verdict, error) {
	if o.NoWait {
		return s.peek(ctx, id, o)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	f := &running{
		RunOptions:   v1.RunOptions{ID: id, Stdout: o.Stdout, Stderr: o.Stderr},
		s:            s,
		op:           "follow",
		at:           v1.Offsets{Stdout: o.StdoutOffset, Stderr: o.StderrOffset},
		onSkip:       o.Skipped,
		onWriteError: stop,
	}
	retry := s.c.retryTimer()
	for {
		before := f.at
		v, err := f.follow(ctx)
		if f.writeErr != nil {
			return nil, unwrittenOutput("follow", f.writeErr)
		}
		if err == nil || !interrupted(err) {
			return v, err
		}
		if f.at != before {
			retry = s.c.retryTimer() // there was progress
		}
		if !retry.wait(ctx) {
			return nil, err
		}
	}
}

// output returns the request for the output of an operation from offsets on.
func (s *Session) output(id string, at v1.Offsets) request {
	q := url.Values{"stdout": {strconv.FormatInt(at.Stdout, 10)}, "stderr": {strconv.FormatInt(at.Stderr, 10)}}
	return get("follow", s.path+s.operation(id)+"/output", q)
}

// peek writes the output that exists now, with as many requests as needed. It does not wait for more output.
func (s *Session) peek(ctx context.Context, id string, o v1.FollowOptions) (*v1.Verdict, error) {
	at := v1.Offsets{Stdout: o.StdoutOffset, Stderr: o.StderrOffset}
	for {
		out, err := callJSON[v1.Followed](ctx, s.c, s.output(id, at))
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
				return nil, unwrittenOutput("follow", err)
			}
		}
		if out.Verdict != nil || out.Running || out.Next == at {
			return out.Verdict, nil
		}
		at = out.Next
	}
}
