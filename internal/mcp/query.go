package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/runview"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
)

// cancelTimeout is the timeout of the request that cancels a run, or that gets its result.
const cancelTimeout = 30 * time.Second

type queryArgs struct {
	Session   string         `json:"session,omitempty" doc:"session whose files are read; left out: the session of this connection"`
	Query     string         `json:"query" doc:"the question"`
	Context   string         `json:"context,omitempty" doc:"text to answer the question from"`
	Files     []string       `json:"files,omitempty" doc:"files in the session's sandbox to answer the question from, of any size"`
	InSession bool           `json:"in_session,omitempty" doc:"run in the session itself, with its variables and files, instead of in a sandbox of its own"`
	Schema    map[string]any `json:"schema,omitempty" doc:"JSON Schema of the answer"`
	Model     string         `json:"model,omitempty" doc:"provider/model; left out: the configured model"`
	Prompt    string         `json:"prompt,omitempty" doc:"name of the prompt profile: default, official, compact or plan; left out: as configured"`
	Limits    v1.RunLimits   `json:"limits,omitzero" doc:"limits of the whole run; left out: the configured limits"`
	Samples   int            `json:"samples,omitempty" minimum:"0" maximum:"16" doc:"number of candidates that answer independently, each with an equal part of the budget; the answer on which most agree is chosen. Not with in_session"`
}

type queryResult struct {
	Run       string          `json:"run,omitempty" doc:"id of the run; its trajectory is the resource recluse://runs/ID"`
	Answer    string          `json:"answer"`
	Value     json.RawMessage `json:"value,omitempty" doc:"the answer as JSON, if it is not only text"`
	Reason    string          `json:"reason" doc:"why the run ended: answered, or the limit that was reached"`
	Message   string          `json:"message,omitempty"`
	Partial   bool            `json:"partial,omitempty" doc:"the run ended before it submitted an answer; this is the best it had"`
	Plain     bool            `json:"plain,omitempty" doc:"the material was small, so the model answered directly"`
	Turns     int             `json:"turns"`
	Calls     int64           `json:"model_calls"`
	Tokens    int64           `json:"tokens"`
	Cost      float64         `json:"cost_usd"`
	Estimated bool            `json:"estimated,omitempty" doc:"some tokens are estimated, because the provider did not report them"`
	WallMS    int64           `json:"wall_ms"`
	Samples   *v1.Samples     `json:"samples,omitempty" doc:"candidates of a query with several, and how many agree"`
	StateFrom string          `json:"state_from,omitempty" doc:"the session's sandbox was lost and restored; variables and files have their state of this time"`
	Previous  string          `json:"previous_session,omitempty" doc:"the session is new, because the previous session of that name ended, as described here; its variables and files are gone"`
}

func (srv *mcpServer) addQuery() {
	add(srv, tool{
		name:  "query",
		title: "Ask a recursive model",
		description: "Let a recursive language model answer a question over material of any size: " +
			"it writes code that examines the material in a sandbox, and asks models about the pieces. " +
			"Progress notifications report what it does; cancelling the call cancels the run.",
	}, (*call).query)
}

func (c *call) query(in queryArgs) (queryResult, error) {
	o := client.RunOptions{
		Query:   in.Query,
		Model:   in.Model,
		Prompt:  in.Prompt,
		Limits:  in.Limits,
		Samples: in.Samples,
		Labels:  map[string]string{"door": "mcp"},
	}
	if in.Schema != nil {
		raw, err := json.Marshal(in.Schema)
		if err != nil {
			return queryResult{}, invalid("schema: %v", err)
		}
		o.Schema = raw
	}
	if in.Context != "" {
		o.Contexts = append(o.Contexts, client.RunContext{Text: &in.Context})
	}
	if err := c.addSessionContexts(in, &o); err != nil {
		return queryResult{}, err
	}
	info, err := c.client.StartRun(c, o)
	if serverHasNoModel(err) {
		return c.queryWithClientModel(in, o, err)
	}
	if err != nil {
		return queryResult{}, err
	}
	if info, err = c.follow(info.ID); err != nil {
		return queryResult{}, err
	}
	if info.Result == nil {
		return queryResult{}, &v1.Error{
			Code:    v1.CodeInternal,
			Op:      "follow run",
			Message: "run " + info.ID + " was interrupted",
			Remedy:  "run: recluse runs resume " + info.ID,
			Retry:   true,
		}
	}
	return queryOf(info.ID, info.Result), nil
}

// addSessionContexts adds the session and its files to the options of a run, as requested by the arguments.
func (c *call) addSessionContexts(in queryArgs, o *client.RunOptions) error {
	if len(in.Files) == 0 && !in.InSession {
		return nil
	}
	s, _, err := c.open(in.Session)
	if err != nil {
		return err
	}
	if in.InSession {
		o.Session = s.Name()
	}
	for _, name := range in.Files {
		b, err := s.Files().ReadAll(c, name)
		if err != nil {
			return err
		}
		o.Contexts = append(o.Contexts, client.RunContext{Name: name, Text: new(strings.ToValidUTF8(string(b), "\uFFFD"))})
	}
	return nil
}

// follow sends progress notifications until a run ends, and returns the run. If the call is cancelled, it cancels the
// run.
func (c *call) follow(id string) (*rlm.Info, error) {
	failure := c.watch(c.client.RunEvents(c, id, 0))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c), cancelTimeout)
	defer cancel()
	if c.Err() != nil {
		return c.client.CancelRun(ctx, id)
	}
	if failure != nil {
		return nil, failure
	}
	return c.client.Run(ctx, id)
}

// watch sends the events of a run to the client as progress notifications, if the client requested them, until the
// events end.
func (c *call) watch(events iter.Seq2[v1.RunEvent, error]) error {
	to := io.Discard
	if p := c.progress("working"); p != nil {
		defer p.stop()
		to = p
	}
	lines := runview.NewLines(to).ForModel()
	defer lines.Close()
	for e, err := range events {
		if err != nil {
			return err
		}
		lines.Event(e)
	}
	return nil
}

func queryOf(id string, r *rlm.Result) queryResult {
	o := queryResult{
		Run:       id,
		Answer:    r.Answer,
		Value:     r.Value,
		Reason:    string(r.Reason),
		Message:   r.Message,
		Partial:   r.Partial,
		Plain:     r.Plain,
		Turns:     r.Turns,
		Calls:     r.Usage.Calls,
		Tokens:    r.Usage.Tokens(),
		Cost:      r.Usage.Cost,
		Estimated: r.Usage.Estimated,
		WallMS:    r.Wall.Milliseconds(),
		Samples:   r.Samples,
		Previous:  r.Previous,
	}
	if r.StateFrom != nil {
		o.StateFrom = r.StateFrom.Format(time.RFC3339Nano)
	}
	return o
}

// render returns the answer as text. The result of a run without an answer is an error, even with a partial answer.
func (o queryResult) render() *sdk.CallToolResult {
	text := o.Answer
	if o.Reason != string(v1.ReasonAnswered) {
		text = strings.TrimSpace(fmt.Sprintf("[the run ended without an answer: %s %s]\n%s", o.Reason, o.Message, o.Answer))
	}
	if o.StateFrom != "" {
		text = restoredNote(o.StateFrom) + "\n" + text
	}
	if o.Previous != "" {
		text = newSessionNote(o.Previous) + "\n" + text
	}
	res := &sdk.CallToolResult{
		IsError: o.Reason != string(v1.ReasonAnswered),
		Content: []sdk.Content{&sdk.TextContent{Text: text}},
	}
	if o.Run != "" {
		res.Content = append(res.Content, &sdk.ResourceLink{
			URI:      runsPrefix + o.Run,
			Name:     "trajectory of run " + o.Run,
			MIMEType: trajectoryType,
		})
	}
	return res
}

// serverHasNoModel reports whether err means that the server has no model.
func serverHasNoModel(err error) bool {
	code := v1.CodeOf(err)
	return code == v1.CodeModelMissing || code == v1.CodeNotSupported
}

// queryWithClientModel runs a query with the client's own model, because the server has none. That model can be called
// only through this connection, so the run ends with the call and has a sandbox of its own.
func (c *call) queryWithClientModel(in queryArgs, o client.RunOptions, cause error) (queryResult, error) {
	m, err := c.sampler(in.Model)
	if err != nil {
		return queryResult{}, errors.Join(err, cause)
	}
	if c.srv.opts.Engine == nil && c.srv.opts.StartRun == nil || in.InSession {
		return queryResult{}, &v1.Error{
			Code:    v1.CodeModelMissing,
			Op:      "begin run",
			Message: "this run cannot use the client's own model",
			Remedy:  "leave in_session out; or " + noModelRemedy,
			Err:     cause,
		}
	}
	q := rlm.Question{
		Query:   o.Query,
		Schema:  o.Schema,
		Prompt:  o.Prompt,
		Limits:  o.Limits,
		Samples: o.Samples,
		Labels:  o.Labels,
	}
	for _, x := range o.Contexts {
		input := rlm.Text(*x.Text)
		input.Name = x.Name
		q.Inputs = append(q.Inputs, input)
	}
	run, err := c.startWithClientModel(q, m)
	if err != nil {
		return queryResult{}, err
	}
	defer context.AfterFunc(c, run.Cancel)()
	_ = c.watch(run.Events(context.WithoutCancel(c), 0)) // Wait returns the error
	res, err := run.Wait()
	if res == nil {
		return queryResult{}, err
	}
	return queryOf(run.ID(), res), nil
}

// startWithClientModel starts a run with the client's own model. The caller is allowed to start runs, because the API
// has checked a request for this run before.
func (c *call) startWithClientModel(q rlm.Question, m llm.Model) (*rlm.Run, error) {
	if c.srv.opts.StartRun == nil {
		e, err := c.srv.opts.Engine(c, func(int, string) (llm.Model, error) { return m, nil })
		if err != nil {
			return nil, err
		}
		return e.Start(c, q)
	}
	who, err := c.client.Server(c)
	if err != nil {
		return nil, err
	}
	return c.srv.opts.StartRun(c, who.Tenant, q, m)
}
