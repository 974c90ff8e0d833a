package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// RunOptions is a question for the server's models.
type RunOptions struct {
	Query    string
	Contexts []RunContext
	Schema   json.RawMessage // that the answer must meet
	Model    string          // provider/model; empty: as the server is configured
	Sub      []string        // models of the calls it makes, by depth
	Limits   v1.RunLimits    // fields that are not set are as the server is configured
	Labels   map[string]string
	Gate     string // off, warn or block; empty: as the server is configured. Not with Session
	Role     string // chooses the thesaurus that the gate judges by. Not with Session
	Session  string // works there; empty: in a sandbox of its own
	Host     *RunHost
}

// RunHost is what a run may ask of the server's machine; only over the socket of one's own server, and not with a session.
type RunHost = v1.RunHost

// MCPServer is a program or an address that offers tools to the code of a run.
type MCPServer = v1.MCPServer

// RunAgain is how a kept run goes on: what is left out is as it was.
type RunAgain = v1.RunAgain

// RunContext is one context: a text, or a path on the server's machine.
type RunContext struct {
	Name string
	Text string
	JSON json.RawMessage
	List []string
	Path string // only over the socket of one's own server
}

func runPath(id string) string { return "/v1/runs/" + url.PathEscape(id) }

// StartRun begins a run. It goes on in the server, whether or not anybody watches.
func (c *Client) StartRun(ctx context.Context, o RunOptions) (*v1.Run, error) {
	in := v1.NewRun{
		Query: o.Query, Schema: o.Schema, Model: o.Model, SubModels: o.Sub, Limits: o.Limits, Labels: o.Labels, Gate: o.Gate, Role: o.Role, Session: o.Session, Host: o.Host,
	}
	for _, x := range o.Contexts {
		rc := v1.RunContext{Name: x.Name, JSON: x.JSON, List: x.List, Path: x.Path}
		if x.JSON == nil && x.List == nil && x.Path == "" {
			rc.Text = &x.Text
		}
		in.Contexts = append(in.Contexts, rc)
	}
	var out v1.Run
	err := c.call(ctx, request{op: "begin run", method: http.MethodPost, path: "/v1/runs", body: in}, &out)
	return &out, err
}

// Runs lists runs, the newest first. The error of a run that cannot be read does not end the list.
func (c *Client) Runs(ctx context.Context) iter.Seq2[*v1.Run, error] {
	return func(yield func(*v1.Run, error) bool) {
		q := url.Values{}
		for {
			var page v1.RunPage
			if err := c.call(ctx, request{op: "list runs", method: http.MethodGet, path: "/v1/runs", query: q, again: true}, &page); err != nil {
				yield(nil, err)
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
			if page.Next == "" {
				return
			}
			q.Set("after", page.Next)
		}
	}
}

// Run looks at a run.
func (c *Client) Run(ctx context.Context, id string) (*v1.Run, error) {
	return c.runInfo(ctx, request{op: "look at run", method: http.MethodGet, path: runPath(id), again: true})
}

// CancelRun stops a run and tells how it has ended.
func (c *Client) CancelRun(ctx context.Context, id string) (*v1.Run, error) {
	return c.runInfo(ctx, request{op: "cancel run", method: http.MethodPost, path: runPath(id) + "/cancel", again: true})
}

// ResumeRun goes on with a run that was interrupted, or ended without an answer.
func (c *Client) ResumeRun(ctx context.Context, id string, again RunAgain) (*v1.Run, error) {
	return c.runInfo(ctx, request{op: "resume run", method: http.MethodPost, path: runPath(id) + "/resume", body: again})
}

// ForkRun begins a new run that shares its first turns, up to and including at, with another.
func (c *Client) ForkRun(ctx context.Context, id string, at int, again RunAgain) (*v1.Run, error) {
	return c.runInfo(ctx, request{op: "fork run", method: http.MethodPost, path: runPath(id) + "/fork", body: v1.ForkRun{At: at, RunAgain: again}})
}

// ReplayRun runs a run again, as a new one, with the replies that models gave then. Host may be nil.
func (c *Client) ReplayRun(ctx context.Context, id string, host *RunHost) (*v1.Run, error) {
	return c.runInfo(ctx, request{op: "replay run", method: http.MethodPost, path: runPath(id) + "/replay", body: v1.ReplayRun{Host: host}})
}

// DeleteRun removes a run that has ended.
func (c *Client) DeleteRun(ctx context.Context, id string) error {
	return c.call(ctx, request{op: "delete run", method: http.MethodDelete, path: runPath(id), again: true}, nil)
}

// ExportRun writes a run in the JSON Lines layout of the official Python library.
func (c *Client) ExportRun(ctx context.Context, id string, w io.Writer) error {
	res, err := c.send(ctx, request{op: "export run", method: http.MethodGet, path: runPath(id) + "/export", again: true})
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(w, res.Body); err != nil {
		return unreachable(ctx, "export run", err)
	}
	return nil
}

func (c *Client) runInfo(ctx context.Context, r request) (*v1.Run, error) {
	var out v1.Run
	if err := c.call(ctx, r, &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// RunEvents returns the events of a run after a number, those to come included, until its end.
func (c *Client) RunEvents(ctx context.Context, id string, after int64) iter.Seq2[v1.RunEvent, error] {
	return c.runEvents(ctx, id, url.Values{"after": {strconv.FormatInt(after, 10)}})
}

// PastRunEvents returns the events of a run up to now.
func (c *Client) PastRunEvents(ctx context.Context, id string) iter.Seq2[v1.RunEvent, error] {
	return c.runEvents(ctx, id, url.Values{"follow": {"false"}})
}

func (c *Client) runEvents(ctx context.Context, id string, query url.Values) iter.Seq2[v1.RunEvent, error] {
	return func(yield func(v1.RunEvent, error) bool) {
		r := request{
			op: "follow run", method: http.MethodGet, path: runPath(id) + "/events", query: query,
			header: map[string]string{"Accept": v1.EventStream},
		}
		err := c.listen(ctx, r, func(e v1.StreamEvent) error {
			var ev v1.RunEvent
			if err := e.Decode(&ev); err != nil {
				return malformed("follow run", err)
			}
			if !yield(ev, nil) {
				return errStop
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(v1.RunEvent{}, err)
		}
	}
}
