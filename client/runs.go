package client

import (
	"context"
	"io"
	"iter"
	"net/url"
	"strconv"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// RunOptions is a question for the server's models.
type RunOptions = v1.NewRun

// RunContext is one context of a question: a text, JSON, a list of texts, or over the socket of one's own server a path.
type RunContext = v1.RunContext

// RunHost is what a run may ask of the server's machine; only over the socket of one's own server, and not with a session.
type RunHost = v1.RunHost

// MCPServer is a program or an address that offers tools to the code of a run.
type MCPServer = v1.MCPServer

// RunAgain is how a kept run goes on: what is left out is as it was.
type RunAgain = v1.RunAgain

func runPath(id string) string { return "/v1/runs/" + url.PathEscape(id) }

// StartRun begins a run. It goes on in the server, whether or not anybody watches.
func (c *Client) StartRun(ctx context.Context, o RunOptions) (*v1.Run, error) {
	return ask[*v1.Run](ctx, c, post("begin run", "/v1/runs", o))
}

// Runs lists runs, the newest first. The error of a run that cannot be read does not end the list.
func (c *Client) Runs(ctx context.Context) iter.Seq2[*v1.Run, error] {
	return func(yield func(*v1.Run, error) bool) {
		for page, err := range list(ctx, c, get("list runs", "/v1/runs", nil), 0, func(p v1.RunPage) ([]v1.RunPage, string) { return []v1.RunPage{p}, p.Next }) {
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

// Run looks at a run.
func (c *Client) Run(ctx context.Context, id string) (*v1.Run, error) {
	return ask[*v1.Run](ctx, c, get("look at run", runPath(id), nil))
}

// CancelRun stops a run and tells how it has ended.
func (c *Client) CancelRun(ctx context.Context, id string) (*v1.Run, error) {
	r := post("cancel run", runPath(id)+"/cancel", nil)
	r.again = true
	return ask[*v1.Run](ctx, c, r)
}

// ResumeRun goes on with a run that was interrupted, or ended without an answer.
func (c *Client) ResumeRun(ctx context.Context, id string, again RunAgain) (*v1.Run, error) {
	return ask[*v1.Run](ctx, c, post("resume run", runPath(id)+"/resume", again))
}

// ForkRun begins a new run that shares its first turns, up to and including at, with another.
func (c *Client) ForkRun(ctx context.Context, id string, at int, again RunAgain) (*v1.Run, error) {
	return ask[*v1.Run](ctx, c, post("fork run", runPath(id)+"/fork", v1.ForkRun{At: at, RunAgain: again}))
}

// ReplayRun runs a run again, as a new one, with the replies that models gave then. Host may be nil.
func (c *Client) ReplayRun(ctx context.Context, id string, host *RunHost) (*v1.Run, error) {
	return ask[*v1.Run](ctx, c, post("replay run", runPath(id)+"/replay", v1.ReplayRun{Host: host}))
}

// DeleteRun removes a run that has ended.
func (c *Client) DeleteRun(ctx context.Context, id string) error {
	r := remove("delete run", runPath(id))
	r.again = true
	return c.call(ctx, r, nil)
}

// ExportRun writes a run in the JSON Lines layout of the official Python library.
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

// RunEvents returns the events of a run after a number, those to come included, until its end.
func (c *Client) RunEvents(ctx context.Context, id string, after int64) iter.Seq2[v1.RunEvent, error] {
	return events[v1.RunEvent](ctx, c, "follow run", runPath(id)+"/events", url.Values{"after": {strconv.FormatInt(after, 10)}})
}

// PastRunEvents returns the events of a run up to now.
func (c *Client) PastRunEvents(ctx context.Context, id string) iter.Seq2[v1.RunEvent, error] {
	return events[v1.RunEvent](ctx, c, "follow run", runPath(id)+"/events", url.Values{"follow": {"false"}})
}
