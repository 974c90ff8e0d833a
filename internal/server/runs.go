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

// runRoutes returns the routes of runs and of OpenAI's chat API.
func (s *Server) runRoutes() []route {
	const run = "/v1/runs/{run}"
	theRuns := (*call).keeper
	rs := []route{
		on("GET", "/v1/runs", "runs", "List runs, the newest first",
			scopeRead, using(theRuns, listRuns)).
			with(qLimit, text("after", "start with the run after this id")).lasting(),
		raw[v1.NewRun, rlm.Info]("POST", "/v1/runs", "runs", "Start a run: a question over contexts of any size",
			scopeExecute, rawUsing(theRuns, startRun)).
			repeating().sandboxes().succeeding(http.StatusCreated).lasting().contexts(),
		on("GET", run, "runs", "Show a run, with its result if it has ended",
			scopeRead, using(theRuns, showRun)).lasting(),
		on("DELETE", run, "runs", "Remove an ended run",
			scopeExecute, using(theRuns, deleteRun)).failing(http.StatusConflict).lasting(),
		raw[none, none]("GET", run+"/events", "runs", "Events of a run, past and future",
			scopeRead, rawUsing(theRuns, runEvents)).
			with(
				number("after", "start with the event after this seq; Last-Event-ID does the same"),
				flag("follow", "continue with later events; true if left out"),
				flag("progress", "send also the progress of nodes between events, which is not stored; false if left out"),
			).streaming(&runStream).lasting(),
		raw[none, none]("GET", run+"/export", "runs",
			"Export a run in the JSON Lines format of the official Python library",
			scopeRead, rawUsing(theRuns, exportRun)).
			giving("application/jsonl").lasting(),
		on("GET", run+"/prompts", "runs", "Messages that a run has sent to models, each text once",
			scopeRead, using(theRuns, runPrompts)).lasting(),
		on("POST", run+"/cancel", "runs", "Stop a run; its result is what it has so far",
			scopeExecute, using(theRuns, cancelRun)).failing(http.StatusConflict).lasting(),
		on("POST", run+"/resume", "runs", "Resume a run that was interrupted, or ended without an answer",
			scopeExecute, using(theRuns, resumeRun)).sandboxes().lasting(),
		on("POST", run+"/replay", "runs", "Run a trajectory again with the recorded replies, as a new run",
			scopeExecute, using(theRuns, replayRun)).repeating().sandboxes().succeeding(http.StatusCreated).lasting(),
		on("POST", run+"/fork", "runs", "Start a new run that shares the first turns of a run",
			scopeExecute, using(theRuns, forkRun)).repeating().sandboxes().succeeding(http.StatusCreated).lasting(),

		on("GET", "/v1/models", "chat", "List models, for OpenAI clients",
			scopeRead, using(theRuns, listModels)),
		raw[chatRequest, chatReply]("POST", "/v1/chat/completions", "chat",
			"Answer a conversation like OpenAI; long conversations are answered by a run",
			scopeExecute, chat).
			streaming(&chatStream).sandboxes().lasting(),
	}
	for i := range rs {
		rs[i] = rs[i].failing(http.StatusNotImplemented) // a server may have no models
	}
	return rs
}

// Busy reports whether a run is in progress. The server must not stop by itself until the run ends.
func (s *Server) Busy() bool { return s.opts.Runs != nil && s.opts.Runs.Busy() }

// keeper returns the keeper of runs, or an error if the server has none.
func (c *call) keeper() (*runs.Keeper, error) {
	if c.s.opts.Runs == nil {
		return nil, &v1.Error{Code: v1.CodeNotSupported, Op: "use runs", Message: "this server has no models"}
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
			// The error may contain paths of the host. Errors before the first run of a later page were in an earlier
			// page.
			if c.who.host && (after == "" || len(out.Runs) > 0) {
				out.Problems = append(out.Problems, problem.Of(err))
			}
			continue
		}
		if after != "" && i.ID >= after { // an id begins with its time, and the list starts with the newest
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

// startRun starts a run. Its body contains the contexts, so it may be as large as an upload.
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
	ask, err := c.newAsk(k, in)
	if err != nil {
		return err
	}
	r, err := k.Start(c.ctx(), c.who.tenant, ask)
	if err != nil {
		return err
	}
	info, err := c.runStarted(k, r)
	if err != nil {
		return err
	}
	return c.reply(info)
}

// runStarted sets the header and status of the answer for a new run, and describes the run. If the caller has
// disconnected meanwhile, the run is cancelled, because the caller does not know its id. With an idempotency key the
// run continues, because a repeated request finds it.
func (c *call) runStarted(k *runs.Keeper, r *rlm.Run) (*rlm.Info, error) {
	if c.ctx().Err() != nil && c.request == "" {
		r.Cancel()
	}
	c.w.Header().Set("Location", "/v1/runs/"+r.ID())
	c.status = http.StatusCreated
	return k.Show(c.who.tenant, r.ID())
}

// maxLarge is how many bodies larger than Limits.Body are in memory at once. Other requests wait.
const maxLarge = 4

// readLarge reads a JSON body that may be as large as an upload. The caller must call release, also on an error, when
// it no longer needs the body.
func (c *call) readLarge() (raw []byte, release func(), err error) {
	release = func() {}
	if c.repeatable != nil { // the body was read for the idempotency key
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
		return nil, release, &v1.Error{
			Code:    v1.CodeQueueFull,
			Op:      "read request",
			Message: "too many large requests are being read",
			Remedy:  "try again later",
			Retry:   true,
		}
	}
	rest := bytes.NewBuffer(raw)
	if _, err := rest.ReadFrom(body); err != nil {
		release()
		return nil, func() {}, bodyError(err)
	}
	return rest.Bytes(), release, nil
}

// newAsk validates a request for a run and converts it.
func (c *call) newAsk(k *runs.Keeper, in v1.NewRun) (runs.Ask, error) {
	var ask runs.Ask
	if strings.TrimSpace(in.Query) == "" && len(in.Contexts) == 0 {
		return ask, invalid("the question is empty")
	}
	for name := range in.Labels {
		if strings.HasPrefix(name, "recluse.") {
			return ask, invalid("labels that begin with recluse. are reserved for the server")
		}
	}
	if in.Session != "" && (in.Gate != "" || in.Role != "" || in.Host != nil) {
		return ask, invalid("gate, role and host cannot be set for a run in a session, which has its own")
	}
	if in.Session != "" && in.Samples > 1 {
		return ask, invalid("a run in a session cannot have samples")
	}
	if in.System != "" && !c.who.host {
		return ask, onlyOnSocket("system_prompt", "prompt with the name of a profile")
	}
	if err := c.checkHost(in.Host); err != nil {
		return ask, err
	}
	if err := c.checkLimits(k, in.Limits); err != nil {
		return ask, err
	}
	q := rlm.Question{
		Query:   in.Query,
		Schema:  in.Schema,
		Model:   in.Model,
		Limits:  in.Limits,
		Labels:  in.Labels,
		Samples: in.Samples,
		Prompt:  in.Prompt,
		System:  in.System,
		Gate:    gate.Mode(in.Gate),
		Role:    in.Role,
	}
	ask = runs.Ask{Question: q, Sub: in.SubModels, Host: in.Host, Remote: !c.who.host}
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

// runContext converts context number i of a request.
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
				Code:    v1.CodeMountRefused,
				Op:      "begin run",
				Message: "callers over the network cannot use files of the host",
				Remedy:  "send the text itself",
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

// checkHost rejects host settings of callers over the network, and invalid ones.
func (c *call) checkHost(h *v1.RunHost) error {
	if h == nil {
		return nil
	}
	if !c.who.host {
		return onlyOnSocket("host", "no host")
	}
	if h.PlainBelow != nil && *h.PlainBelow < 0 || h.CacheBytes != nil && *h.CacheBytes < 0 {
		return invalid("host: plain_below or cache_bytes is negative")
	}
	return c.checkSettings(v1.Settings{Spec: h.Spec})
}

// onlyOnSocket returns the error for a field that callers over the network may not set. instead is what they may use.
func onlyOnSocket(field, instead string) error {
	return &v1.Error{
		Code:    v1.CodeForbidden,
		Op:      "begin run",
		Message: "only callers on the server's UNIX socket may set " + field,
		Remedy:  "use " + instead + ", or the server's UNIX socket as its user",
	}
}

// checkLimits validates the requested limits. Only the server's own user may exceed the configured limits.
func (c *call) checkLimits(k *runs.Keeper, l v1.RunLimits) error {
	if err := l.Validate(); err != nil {
		return invalid("limits: %v", err)
	}
	if c.who.host {
		return nil
	}
	if above := l.Exceeds(k.Limits()); len(above) > 0 {
		return &v1.Error{
			Code:    v1.CodeForbidden,
			Op:      "begin run",
			Message: "limits above those of the server: " + strings.Join(above, ", "),
			Remedy:  "request lower limits, or have the operator raise models.max_tokens and the other limits of runs",
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

// newAgain validates and converts the settings of a run that is resumed or forked.
func (c *call) newAgain(k *runs.Keeper, in v1.RunAgain) (runs.Again, error) {
	if err := c.checkLimits(k, in.Limits); err != nil {
		return runs.Again{}, err
	}
	a := runs.Again{Model: in.Model, Sub: in.SubModels, Limits: in.Limits, Host: in.Host, Remote: !c.who.host}
	return a, c.checkHost(in.Host)
}

func resumeRun(c *call, k *runs.Keeper, in v1.RunAgain) (*rlm.Info, error) {
	a, err := c.newAgain(k, in)
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
	a, err := c.newAgain(k, in.RunAgain)
	if err != nil {
		return nil, err
	}
	r, err := k.Fork(c.ctx(), c.who.tenant, c.r.PathValue("run"), in.At, a)
	if err != nil {
		return nil, err
	}
	return c.runStarted(k, r)
}

func replayRun(c *call, k *runs.Keeper, in v1.ReplayRun) (*rlm.Info, error) {
	if err := c.checkHost(in.Host); err != nil {
		return nil, err
	}
	r, err := k.Replay(c.ctx(), c.who.tenant, c.r.PathValue("run"), in.Host)
	if err != nil {
		return nil, err
	}
	return c.runStarted(k, r)
}

// runEvents streams the past events of a run, and with follow also later ones.
func runEvents(c *call, k *runs.Keeper) error {
	id := c.r.PathValue("run")
	if _, err := k.Show(c.who.tenant, id); err != nil {
		return err
	}
	events := func(ctx context.Context, after int64, follow bool) iter.Seq2[v1.RunEvent, error] {
		return k.Events(ctx, c.who.tenant, id, after, follow, c.flag("progress", false))
	}
	return sendEvents(c, events, func(e v1.RunEvent) (int64, string) { return e.Seq, string(e.Kind) })
}

func runPrompts(c *call, k *runs.Keeper, _ none) (*v1.RunPrompts, error) {
	return k.Prompts(c.who.tenant, c.r.PathValue("run"))
}

func exportRun(c *call, k *runs.Keeper) error {
	id := c.r.PathValue("run")
	if _, err := k.Show(c.who.tenant, id); err != nil {
		return err
	}
	c.w.Header().Set("Content-Type", "application/jsonl")
	return k.Export(c.who.tenant, id, c.w)
}
