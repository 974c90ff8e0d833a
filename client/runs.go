package client

import (
	"context"
	"io"
	"iter"
	"net/url"
	"strconv"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// RunOptions is a question with its options, for StartRun.
type RunOptions = v1.NewRun

// RunContext is one model context of a question: a text, JSON, a list of texts, or a path. A path is allowed only over
// the socket of the user's own server.
type RunContext = v1.RunContext

// RunHost are options of a run that concern the server's machine. They are allowed only over the socket of the user's
// own server, and not for a run in a session.
type RunHost = v1.RunHost

// MCPServer is an MCP server, by command or URL, whose tools the code of a run can call.
type MCPServer = v1.MCPServer

// RunAgain are the options for continuing a run. Fields that are not set keep the values of the run.
type RunAgain = v1.RunAgain

func runPath(id string) string { return "/v1/runs/" + url.PathEscape(id) }

// StartRun starts a run in the server. The run continues if the client disconnects.
func (c *Client) StartRun(ctx context.Context, o RunOptions) (*v1.Run, error) {
	return callJSON[*v1.Run](ctx, c, post("start run", "/v1/runs", o))
}

// Runs lists runs, newest first. For a run that cannot be read it yields an error and continues.
func (c *Client) Runs(ctx context.Context) iter.Seq2[*v1.Run, error] {
	return func(yield func(*v1.Run, error) bool) {
		r := get("list runs", "/v1/runs", nil)
		pages := list(ctx, c, r, 0, func(p v1.RunPage) ([]v1.RunPage, string) { return []v1.RunPage{p}, p.Next })
		for page, err := range pages {
			if err != nil && !yield(nil, err) {
				return
			}
			for _, p := range page.Problems {
				if !yield(nil, p.Err()) {
					return
				}
			}
			for _, i := range page.Runs {
				if !yield(i, nil) {
					return
				}
			}
		}
	}
}

// Run returns a run.
func (c *Client) Run(ctx context.Context, id string) (*v1.Run, error) {
	return callJSON[*v1.Run](ctx, c, get("show run", runPath(id), nil))
}

// CancelRun stops a run and returns it when it has ended.
func (c *Client) CancelRun(ctx context.Context, id string) (*v1.Run, error) {
	r := post("cancel run", runPath(id)+"/cancel", nil)
	r.idempotent = true
	return callJSON[*v1.Run](ctx, c, r)
}

// ResumeRun continues a run that was interrupted, or ended without an answer.
func (c *Client) ResumeRun(ctx context.Context, id string, again RunAgain) (*v1.Run, error) {
	return callJSON[*v1.Run](ctx, c, post("resume run", runPath(id)+"/resume", again))
}

// ForkRun starts a new run that shares the turns up to and including at with the run id.
func (c *Client) ForkRun(ctx context.Context, id string, at int, again RunAgain) (*v1.Run, error) {
	return callJSON[*v1.Run](ctx, c, post("fork run", runPath(id)+"/fork", v1.ForkRun{At: at, RunAgain: again}))
}

// ReplayRun repeats a run as a new run, with the recorded replies of the models. host may be nil.
func (c *Client) ReplayRun(ctx context.Context, id string, host *RunHost) (*v1.Run, error) {
	return callJSON[*v1.Run](ctx, c, post("replay run", runPath(id)+"/replay", v1.ReplayRun{Host: host}))
}

// DeleteRun removes a run that has ended.
func (c *Client) DeleteRun(ctx context.Context, id string) error {
	r := remove("delete run", runPath(id))
	r.idempotent = true
	return c.call(ctx, r, nil)
}

// ExportRun writes a run to w in the JSON Lines format of the official Python library.
func (c *Client) ExportRun(ctx context.Context, id string, w io.Writer) error {
	res, err := c.send(ctx, get("export run", runPath(id)+"/export", nil))
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(w, res.Body); err != nil {
		return unreachable(ctx, "export run", err)
	}
	return nil
}

// RunPrompts returns the messages that a run has sent to models so far. Events refer to them.
func (c *Client) RunPrompts(ctx context.Context, id string) (*v1.RunPrompts, error) {
	return callJSON[*v1.RunPrompts](ctx, c, get("read prompts", runPath(id)+"/prompts", nil))
}

// RunEvents iterates over the events of a run after the number after, and waits for new ones until the run ends.
func (c *Client) RunEvents(ctx context.Context, id string, after int64) iter.Seq2[v1.RunEvent, error] {
	return events[v1.RunEvent](
		ctx,
		c,
		"follow run",
		runPath(id)+"/events",
		url.Values{"after": {strconv.FormatInt(after, 10)}},
	)
}

// WatchRun is RunEvents with the progress of nodes between the events, which is not stored (v1.KindProgress).
func (c *Client) WatchRun(ctx context.Context, id string, after int64) iter.Seq2[v1.RunEvent, error] {
	q := url.Values{"after": {strconv.FormatInt(after, 10)}, "progress": {"true"}}
	return events[v1.RunEvent](ctx, c, "follow run", runPath(id)+"/events", q)
}

// PastRunEvents iterates over the events of a run so far.
func (c *Client) PastRunEvents(ctx context.Context, id string) iter.Seq2[v1.RunEvent, error] {
	return events[v1.RunEvent](ctx, c, "follow run", runPath(id)+"/events", url.Values{"follow": {"false"}})
}
