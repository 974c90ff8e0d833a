package server

import (
	"bytes"
	"context"
	"io"
	"iter"
	"net/http"
	"strings"
	"sync"

	"github.com/recluse-dev/recluse/internal/problem"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/internal/runs"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/session"
)

// runRoutes are the routes of runs.
func (s *Server) runRoutes() []route {
	const run = "/v1/runs/{run}"
	theRuns := (*call).keeper
	rs := []route{
		on("GET", "/v1/runs", "runs", "List runs, the newest first", scopeRead, using(theRuns, listRuns)).
			with(qLimit, text("after", "run behind which to begin")).lasting(),
		raw[v1.NewRun, rlm.Info]("POST", "/v1/runs", "runs", "Begin a run: a question over contexts of any size", scopeExecute, rawUsing(theRuns, startRun)).
			repeating().sandboxes().succeeding(http.StatusCreated).lasting().contexts(),
		on("GET", run, "runs", "Look at a run, and at its result once it has ended", scopeRead, using(theRuns, showRun)).lasting(),
		on("DELETE", run, "runs", "Remove a run that has ended", scopeExecute, using(theRuns, deleteRun)).failing(http.StatusConflict).lasting(),
		raw[none, none]("GET", run+"/events", "runs", "What a run did, and what it does until its end", scopeRead, rawUsing(theRuns, runEvents)).
			with(number("after", "seq behind which to begin; Last-Event-ID does the same"), flag("follow", "wait for those to come; left out: true")).streaming(&runStream).lasting(),
		raw[none, none]("GET", run+"/export", "runs", "A run in the JSON Lines layout of the official Python library", scopeRead, rawUsing(theRuns, exportRun)).
			giving("application/jsonl").lasting(),
		on("POST", run+"/cancel", "runs", "Stop a run; its result is what there is", scopeExecute, using(theRuns, cancelRun)).failing(http.StatusConflict).lasting(),
		on("POST", run+"/resume", "runs", "Go on with a run that was interrupted, or ended without an answer", scopeExecute, using(theRuns, resumeRun)).sandboxes().lasting(),
		on("POST", run+"/replay", "runs", "Run it again with the replies that models gave then, as a new run", scopeExecute, using(theRuns, replayRun)).repeating().sandboxes().succeeding(http.StatusCreated).lasting(),
		on("POST", run+"/fork", "runs", "Try again from one of its turns, as a new run", scopeExecute, using(theRuns, forkRun)).repeating().sandboxes().succeeding(http.StatusCreated).lasting(),

		on("GET", "/v1/models", "chat", "List models, for clients of OpenAI's", scopeRead, using(theRuns, listModels)),
		raw[chatRequest, chatReply]("POST", "/v1/chat/completions", "chat", "Answer a conversation as OpenAI does; long ones by a run", scopeExecute, chat).
			streaming(&chatStream).sandboxes().lasting(),
	}
	for i := range rs {
		rs[i] = rs[i].failing(http.StatusNotImplemented) // a server may run no models
	}
	return rs
}

// Busy reports whether a run is under way, which needs the server as long as it lasts.
func (s *Server) Busy() bool { return s.opts.Runs != nil && s.opts.Runs.Busy() }

// keeper gives what looks after runs.
func (c *call) keeper() (*runs.Keeper, error) {
	if c.s.opts.Runs == nil {
		return nil, &v1.Error{Code: v1.CodeNotSupported, Op: "use runs", Message: "this server runs no models"}
	}
	return c.s.opts.Runs, nil
}

func listRuns(c *call, k *runs.Keeper, _ none) (v1.RunPage, error) {
	out := v1.RunPage{Runs: []*rlm.Info{}}
	limit := c.page()
	after := c.query.Get("after")
	for i, err := range k.List(c.who.tenant) {
		if err != nil {
			c.logger().Warn("a run cannot be read", "error", err)
			if c.who.host && (after == "" || len(out.Runs) > 0) { // its text may name paths, and on an earlier page it was told
				out.Problems = append(out.Problems, problem.Of(err))
			}
			continue
		}
		if after != "" && i.ID >= after { // ids begin with their time, and the newest come first
			continue
		}
		if len(out.Runs) == limit {
			out.Next = out.Runs[limit-1].ID
			break
		}
		out.Runs = append(out.Runs, i)
	}
	return out, nil
}

// startRun begins a run. Its body may be as large as an upload: contexts come in it.
func startRun(c *call, k *runs.Keeper) error {
	var in v1.NewRun
	raw, release, err := c.readLarge()
	defer release()
	if err == nil {
		err = unmarshal(raw, &in, strict)
	}
	if err != nil {
		return err
	}
	ask, err := c.question(k, in)
	if err != nil {
		return err
	}
	r, err := k.Start(c.ctx(), c.who.tenant, ask)
	if err != nil {
		return err
	}
	info, err := c.begun(k, r)
	if err != nil {
		return err
	}
	return c.reply(info)
}

// begun describes a run that has just begun. One whose caller has gone meanwhile is stopped, since nobody knows of it: only under an idempotency key
// can it be found again.
func (c *call) begun(k *runs.Keeper, r *rlm.Run) (*rlm.Info, error) {
	if c.ctx().Err() != nil && c.request == "" {
		r.Cancel()
	}
	c.w.Header().Set("Location", "/v1/runs/"+r.ID())
	c.status = http.StatusCreated
	return k.Show(c.who.tenant, r.ID())
}

// maxLarge is how many bodies beyond Limits.Body are held in memory at once; others wait.
const maxLarge = 4

// readLarge reads a JSON body that may be as large as an upload and must keep moving. Call release when nothing of it is needed any more.
func (c *call) readLarge() (raw []byte, release func(), err error) {
	release = func() {}
	if c.repeatable != nil { // it has been read
		return *c.repeatable, release, nil
	}
	body := c.upload()
	raw, err = io.ReadAll(io.LimitReader(body, c.s.opts.Limits.Body))
	if err != nil {
		return nil, release, bodyError(err)
	}
	if int64(len(raw)) < c.s.opts.Limits.Body {
		return raw, release, nil
	}
	ctx, cancel := context.WithTimeout(c.ctx(), stallTimeout)
	defer cancel()
	select {
	case c.s.large <- struct{}{}:
		release = sync.OnceFunc(func() { <-c.s.large })
	case <-ctx.Done():
		return nil, release, &v1.Error{Code: v1.CodeQueueFull, Op: "read request", Message: "too many large requests are being read", Remedy: "try again later", Retry: true}
	}
	rest := bytes.NewBuffer(raw)
	if _, err := rest.ReadFrom(body); err != nil {
		release()
		return nil, func() {}, bodyError(err)
	}
	return rest.Bytes(), release, nil
}

// question makes a question of a request.
func (c *call) question(k *runs.Keeper, in v1.NewRun) (runs.Ask, error) {
	var ask runs.Ask
	if strings.TrimSpace(in.Query) == "" && len(in.Contexts) == 0 {
		return ask, invalid("the question is empty")
	}
	for name := range in.Labels {
		if strings.HasPrefix(name, "recluse.") {
			return ask, invalid("labels that begin with recluse. are kept for the server")
		}
	}
	if in.Session != "" && (in.Gate != "" || in.Role != "" || in.Host != nil) {
		return ask, invalid("gate, role and host are those of the session")
	}
	if err := c.checkHost(in.Host); err != nil {
		return ask, err
	}
	if err := c.checkLimits(k, in.Limits); err != nil {
		return ask, err
	}
	q := rlm.Question{Query: in.Query, Schema: in.Schema, Model: in.Model, Limits: in.Limits, Labels: in.Labels, Gate: gate.Mode(in.Gate), Role: in.Role}
	ask = runs.Ask{Question: q, Sub: in.SubModels, Host: in.Host, Away: !c.who.host}
	for i, x := range in.Contexts {
		input, err := c.runContext(i, x)
		if err != nil {
			return ask, err
		}
		ask.Inputs = append(ask.Inputs, input)
	}
	if in.Session == "" {
		return ask, nil
	}
	key, _, err := c.s.manager.Resolve(c.ctx(), session.Key{Tenant: c.who.tenant, Name: in.Session})
	if err == nil {
		ask.Session, err = c.s.manager.Get(c.ctx(), key)
	}
	return ask, err
}

func (c *call) runContext(i int, x v1.RunContext) (rlm.Input, error) {
	var in rlm.Input
	given := 0
	if x.Text != nil {
		in, given = rlm.Text(*x.Text), given+1
	}
	if x.JSON != nil {
		in, given = rlm.JSON(x.JSON), given+1
	}
	if x.List != nil {
		in, given = rlm.List(x.List), given+1
	}
	if x.Path != "" {
		if !c.who.host {
			return in, &v1.Error{
				Code: v1.CodeMountRefused, Op: "begin run", Message: "files of the host are not read for callers over the network", Remedy: "send the text itself",
			}
		}
		in, given = rlm.File(x.Path), given+1
	}
	if given != 1 {
		return in, invalid("context %d must have exactly one of text, json, list and path", i)
	}
	if x.Name != "" {
		in.Name = x.Name
	}
	return in, nil
}

// checkHost refuses what only the owner of the machine may ask for.
func (c *call) checkHost(h *v1.RunHost) error {
	if h == nil {
		return nil
	}
	if !c.who.host {
		return &v1.Error{
			Code: v1.CodeForbidden, Op: "begin run", Message: "host: only callers on the server's own socket may set it", Remedy: "leave it out, or use the server's UNIX socket as its user",
		}
	}
	if h.PlainBelow != nil && *h.PlainBelow < 0 || h.CacheBytes != nil && *h.CacheBytes < 0 {
		return invalid("host: plain_below and cache_bytes cannot be negative")
	}
	return c.checkSettings(v1.Settings{Spec: h.Spec})
}

// checkLimits validates the limits that a caller asks for. Only the owner of the machine may ask for more than it is configured with.
func (c *call) checkLimits(k *runs.Keeper, l v1.RunLimits) error {
	if err := l.Validate(); err != nil {
		return invalid("limits: %v", err)
	}
	if c.who.host {
		return nil
	}
	if above := l.Exceeds(k.Limits()); len(above) > 0 {
		return &v1.Error{
			Code: v1.CodeForbidden, Op: "begin run", Message: "limits above those of the server: " + strings.Join(above, ", "),
			Remedy: "ask for less, or let its owner raise models.max_tokens and the like",
		}
	}
	return nil
}

func showRun(c *call, k *runs.Keeper, _ none) (*rlm.Info, error) {
	return k.Show(c.who.tenant, c.r.PathValue("run"))
}

func deleteRun(c *call, k *runs.Keeper, _ none) (none, error) {
	return none{}, k.Delete(c.ctx(), c.who.tenant, c.r.PathValue("run"))
}

func cancelRun(c *call, k *runs.Keeper, _ none) (*rlm.Info, error) {
	return k.Cancel(c.ctx(), c.who.tenant, c.r.PathValue("run"))
}

// goOn reads how a kept run is to go on.
func (c *call) goOn(k *runs.Keeper, in v1.RunAgain) (runs.Again, error) {
	if err := c.checkLimits(k, in.Limits); err != nil {
		return runs.Again{}, err
	}
	return runs.Again{Model: in.Model, Sub: in.SubModels, Limits: in.Limits, Host: in.Host, Away: !c.who.host}, c.checkHost(in.Host)
}

func resumeRun(c *call, k *runs.Keeper, in v1.RunAgain) (*rlm.Info, error) {
	a, err := c.goOn(k, in)
	if err != nil {
		return nil, err
	}
	r, err := k.Resume(c.ctx(), c.who.tenant, c.r.PathValue("run"), a)
	if err != nil {
		return nil, err
	}
	return k.Show(c.who.tenant, r.ID())
}

func forkRun(c *call, k *runs.Keeper, in v1.ForkRun) (*rlm.Info, error) {
	a, err := c.goOn(k, in.RunAgain)
	if err != nil {
		return nil, err
	}
	r, err := k.Fork(c.ctx(), c.who.tenant, c.r.PathValue("run"), in.At, a)
	if err != nil {
		return nil, err
	}
	return c.begun(k, r)
}

func replayRun(c *call, k *runs.Keeper, in v1.ReplayRun) (*rlm.Info, error) {
	if err := c.checkHost(in.Host); err != nil {
		return nil, err
	}
	r, err := k.Replay(c.ctx(), c.who.tenant, c.r.PathValue("run"), in.Host)
	if err != nil {
		return nil, err
	}
	return c.begun(k, r)
}

// runEvents tells what a run did, and what it does.
func runEvents(c *call, k *runs.Keeper) error {
	id := c.r.PathValue("run")
	if _, err := k.Show(c.who.tenant, id); err != nil {
		return err
	}
	events := func(ctx context.Context, after int64, follow bool) iter.Seq2[v1.RunEvent, error] {
		return k.Events(ctx, c.who.tenant, id, after, follow)
	}
	return sendEvents(c, events, func(e v1.RunEvent) (int64, string) { return e.Seq, string(e.Kind) })
}

func exportRun(c *call, k *runs.Keeper) error {
	id := c.r.PathValue("run")
	if _, err := k.Show(c.who.tenant, id); err != nil {
		return err
	}
	c.w.Header().Set("Content-Type", "application/jsonl")
	return k.Export(c.who.tenant, id, c.w)
}
