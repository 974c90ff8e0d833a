package main

import (
	"context"
	"errors"
	"io"
	"iter"
	"os"
	"path/filepath"
	"time"

	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// cancelWait bounds how long a server has to stop a run.
const cancelWait = 30 * time.Second

// askSession lets the server answer in a session, which is made if there is none.
func (a *app) askSession(ctx context.Context, w *watch, o *askOptions, q rlm.Question) error {
	if o.machine.said() {
		return usage("--session: the sandbox is that of the session; make it with recluse session create")
	}
	if o.gate != "" || o.role != "" {
		return usage("--gate and --role: they are those of the session; say them when it is opened, with recluse session open")
	}
	if len(o.mcp) > 0 {
		return usage("--mcp: the server answers in a session, with the MCP servers of its own configuration (mcp.servers)")
	}
	if o.thrift.said() {
		return usage("--plain-below, --cache: the server answers in a session, as its own configuration says (models.plain_below, models.cache)")
	}
	c, done, err := a.connect(ctx)
	if err != nil {
		return cause(ctx, err)
	}
	defer done()
	if _, err := a.findOrMake(ctx, c, o.session, session.OpenOptions{}); err != nil {
		return cause(ctx, err)
	}
	opts := client.RunOptions{
		Query: q.Query, Schema: q.Schema, Model: o.model, Sub: o.sub, Session: o.session,
		Limits: q.Limits,
	}
	for _, path := range o.contexts {
		x, err := a.sendContext(path, a.cfg.Client.URL == "")
		if err != nil {
			return err
		}
		opts.Contexts = append(opts.Contexts, x)
	}
	return a.follow(ctx, w, o.quiet, func(ctx context.Context) (following, error) {
		info, err := c.StartRun(ctx, opts)
		if err != nil {
			return nil, err
		}
		return &remote{c: c, id: info.ID}, nil
	})
}

// sendContext names a file for a server on this machine; another one is sent its text.
func (a *app) sendContext(path string, here bool) (client.RunContext, error) {
	fail := func(err error) (client.RunContext, error) {
		return client.RunContext{}, &sandbox.Error{Code: rlm.CodeContextMissing, Op: "read the context", Message: "it cannot be read", Err: err}
	}
	if path == "-" {
		b, err := io.ReadAll(a.stdin)
		if err != nil {
			return fail(err)
		}
		return client.RunContext{Name: "stdin", Text: string(b)}, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return fail(err)
	}
	if here {
		full, err := filepath.Abs(path) // the server works elsewhere
		if err != nil {
			return fail(err)
		}
		return client.RunContext{Path: full}, nil
	}
	if info.IsDir() {
		return client.RunContext{}, usage("--context %s: a directory cannot be sent to another machine", path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return fail(err)
	}
	return client.RunContext{Name: filepath.Base(path), Text: string(b)}, nil
}

// remote is a run in a server.
type remote struct {
	c  *client.Client
	id string
}

// Events implements following.
func (r *remote) Events(ctx context.Context, from int64) iter.Seq2[rlm.Event, error] {
	return r.c.RunEvents(ctx, r.id, from)
}

// Cancel implements following.
func (r *remote) Cancel() {
	ctx, cancel := context.WithTimeout(context.Background(), cancelWait)
	defer cancel()
	_, _ = r.c.CancelRun(ctx, r.id) // its events tell
}

// Wait implements following.
func (r *remote) Wait() (*rlm.Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), cancelWait)
	defer cancel()
	info, err := r.c.Run(ctx, r.id)
	if err != nil {
		return nil, err
	}
	if info.Result == nil {
		return nil, &sandbox.Error{Code: rlm.CodeNoAnswer, Op: "answer", Message: "the run was interrupted", Remedy: "recluse runs resume " + r.id}
	}
	if info.Result.Reason != rlm.ReasonAnswered {
		return info.Result, &sandbox.Error{Code: rlm.CodeNoAnswer, Op: "answer", Message: "the run ended: " + string(info.Result.Reason), Err: errors.New(info.Result.Message)}
	}
	return info.Result, nil
}
