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

// cancelWait bounds how long the server has to stop a run and to say what there was.
const cancelWait = 30 * time.Second

type queryArgs struct {
	Session   string         `json:"session,omitempty" doc:"session whose files are read; left out: the one of this connection"`
	Query     string         `json:"query" doc:"the question"`
	Context   string         `json:"context,omitempty" doc:"text to answer it from"`
	Files     []string       `json:"files,omitempty" doc:"files in the session's sandbox to answer it from, as large as they may be"`
	InSession bool           `json:"in_session,omitempty" doc:"let the run work in the session itself, with its variables and files, instead of in a sandbox of its own"`
	Schema    map[string]any `json:"schema,omitempty" doc:"JSON Schema that the answer must meet"`
	Model     string         `json:"model,omitempty" doc:"provider/model; left out: as configured"`
	Limits    v1.RunLimits   `json:"limits,omitzero" doc:"bounds of the whole run; left out: as configured"`
}

type queryResult struct {
	Run       string          `json:"run,omitempty" doc:"id of the run; its trajectory is the resource recluse://runs/ID"`
	Answer    string          `json:"answer"`
	Value     json.RawMessage `json:"value,omitempty" doc:"the answer as JSON, if it is more than text"`
	Reason    string          `json:"reason" doc:"why the run ended: answered, or what ran out"`
	Message   string          `json:"message,omitempty"`
	Partial   bool            `json:"partial,omitempty" doc:"the answer was not handed in: it is the best there was"`
	Plain     bool            `json:"plain,omitempty" doc:"the model was asked directly, the material being small"`
	Turns     int             `json:"turns"`
	Calls     int64           `json:"model_calls"`
	Tokens    int64           `json:"tokens"`
	Cost      float64         `json:"cost_usd"`
	Estimated bool            `json:"estimated,omitempty" doc:"some of the tokens were not told but estimated"`
	WallMS    int64           `json:"wall_ms"`
	StateFrom string          `json:"state_from,omitempty" doc:"the session's sandbox was lost: variables and files went back to what they were at this moment"`
	Previous  string          `json:"previous_session,omitempty" doc:"the session is new, because the previous one of that name has ended as said here: its variables and files are gone"`
}

func (f *face) addQuery() {
	add(f, tool{
		name: "query", title: "Ask a recursive model",
		description: "Let a recursive language model answer a question over material of any size: it writes code that looks at the material in a sandbox, and asks models about the pieces. Progress tells what it does; cancelling gives up the run.",
	}, (*call).query)
}

func (c *call) query(in queryArgs) (queryResult, error) {
	o := client.RunOptions{
		Query: in.Query, Model: in.Model, Limits: in.Limits, Labels: map[string]string{"door": "mcp"},
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
	if err := c.material(in, &o); err != nil {
		return queryResult{}, err
	}
	info, err := c.client.StartRun(c, o)
	if noModelThere(err) {
		return c.queryClient(in, o, err)
	}
	if err != nil {
		return queryResult{}, err
	}
	if info, err = c.follow(info.ID); err != nil {
		return queryResult{}, err
	}
	if info.Result == nil {
		return queryResult{}, &v1.Error{
			Code: v1.CodeInternal, Op: "follow run", Message: "run " + info.ID + " was interrupted", Remedy: "recluse runs resume " + info.ID, Retry: true,
		}
	}
	return queryOf(info.ID, info.Result), nil
}

// material adds what comes from the session.
func (c *call) material(in queryArgs, o *client.RunOptions) error {
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

// follow tells how a run goes until its end. A caller that gives up gives the run up, too.
func (c *call) follow(id string) (*rlm.Info, error) {
	failure := c.watch(c.client.RunEvents(c, id, 0))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c), cancelWait)
	defer cancel()
	if c.Err() != nil {
		return c.client.CancelRun(ctx, id)
	}
	if failure != nil {
		return nil, failure
	}
	return c.client.Run(ctx, id)
}

// watch tells a client that asked for it what a run does, until its events end.
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
		Run: id, Answer: r.Answer, Value: r.Value, Reason: string(r.Reason), Message: r.Message, Partial: r.Partial, Plain: r.Plain, Turns: r.Turns,
		Calls: r.Usage.Calls, Tokens: r.Usage.Tokens(), Cost: r.Usage.Cost, Estimated: r.Usage.Estimated, WallMS: r.Wall.Milliseconds(),
		Previous: r.Previous,
	}
	if r.StateFrom != nil {
		o.StateFrom = r.StateFrom.Format(time.RFC3339Nano)
	}
	return o
}

// shown returns the answer as it is. A run without one has failed, whatever it can show.
func (o queryResult) shown() *sdk.CallToolResult {
	text := o.Answer
	if o.Reason != string(v1.ReasonAnswered) {
		text = strings.TrimSpace(fmt.Sprintf("[the run ended without an answer: %s %s]\n%s", o.Reason, o.Message, o.Answer))
	}
	if o.StateFrom != "" {
		text = wentBack(o.StateFrom) + "\n" + text
	}
	if o.Previous != "" {
		text = isNew(o.Previous) + "\n" + text
	}
	res := &sdk.CallToolResult{IsError: o.Reason != string(v1.ReasonAnswered), Content: []sdk.Content{&sdk.TextContent{Text: text}}}
	if o.Run != "" {
		res.Content = append(res.Content, &sdk.ResourceLink{URI: runsPrefix + o.Run, Name: "trajectory of run " + o.Run, MIMEType: trajectoryType})
	}
	return res
}

// noModelThere reports a server that has no model to ask, whatever it was asked for.
func noModelThere(err error) bool {
	code := v1.CodeOf(err)
	return code == v1.CodeModelMissing || code == v1.CodeNotSupported
}

// queryClient answers with the client's own model where the server has none. That model is reached only through this connection, so the run
// ends with the call, and has a sandbox of its own.
func (c *call) queryClient(in queryArgs, o client.RunOptions, cause error) (queryResult, error) {
	m, err := c.sampler(in.Model)
	if err != nil {
		return queryResult{}, errors.Join(err, cause)
	}
	if c.f.opts.Engine == nil && c.f.opts.Lent == nil || in.InSession {
		return queryResult{}, &v1.Error{
			Code: v1.CodeModelMissing, Op: "begin run", Message: "the client's own model cannot be asked from there",
			Remedy: "leave in_session out; or " + noModelRemedy, Err: cause,
		}
	}
	q := rlm.Question{Query: o.Query, Schema: o.Schema, Limits: o.Limits, Labels: o.Labels}
	for _, x := range o.Contexts {
		input := rlm.Text(*x.Text)
		input.Name = x.Name
		q.Inputs = append(q.Inputs, input)
	}
	run, err := c.lend(q, m)
	if err != nil {
		return queryResult{}, err
	}
	defer context.AfterFunc(c, run.Cancel)()
	_ = c.watch(run.Events(context.WithoutCancel(c), 0)) // its result tells
	res, err := run.Wait()
	if res == nil {
		return queryResult{}, err
	}
	return queryOf(run.ID(), res), nil
}

// lend begins a run with the client's own model. The API was asked for a run before, so the caller may have one.
func (c *call) lend(q rlm.Question, m llm.Model) (*rlm.Run, error) {
	if c.f.opts.Lent == nil {
		e, err := c.f.opts.Engine(c, func(int, string) (llm.Model, error) { return m, nil })
		if err != nil {
			return nil, err
		}
		return e.Start(c, q)
	}
	who, err := c.client.Server(c)
	if err != nil {
		return nil, err
	}
	return c.f.opts.Lent(c, who.Tenant, q, m)
}
