package rlm

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/lazyregexp"
	"github.com/recluse-dev/recluse/internal/trajectory"
	"github.com/recluse-dev/recluse/llm"
)

const (
	contextDir = "context"
	runFile    = "run.json"
)

// Run is a run that is in progress or has ended.
type Run struct {
	engine    *Engine
	id        string
	dir       string
	q         Question
	limits    v1.RunLimits // every field is set
	schema    *jsonschema.Resolved
	model     llm.Model
	budget    *budget
	cache     *Cache
	staged    *staged
	log       *trajectory.Log
	asked     *trajectory.Prompts // nil: prompts are not stored
	tools     []Tool
	rules     rules
	prompts   runPrompts
	recording *recording // recorded replies, of a resumed or replayed run; nil: none

	otherModel string // the name of model, if the run started with another one

	slots chan struct{} // bounds the concurrent model calls of the whole tree

	calls, cells, children, cacheHits atomic.Int64
	forked                            string
	models                            func(depth int, name string) (llm.Model, error)
	unlock                            func()
	coverage                          *coverage

	mu           sync.Mutex
	childSlotsAt map[int]chan struct{} // guarded by mu; bounds the concurrent child runs of each depth

	cancel context.CancelCauseFunc
	done   chan struct{}
	result *Result // set before done is closed
	err    error
}

// errCancelled is the cancellation cause after Run.Cancel.
var errCancelled = errors.New("the run was stopped")

// ErrSuspended is the cancellation cause for the ctx of a run that another program will resume, for example when a
// server shuts down. The run is stored as if the program had been killed: no event says that it ended, and with
// Options.Durable its sandbox keeps running.
var ErrSuspended = errors.New("the program is shutting down, and the run can be resumed")

// suspended reports whether ctx was cancelled with ErrSuspended.
func suspended(ctx context.Context) bool {
	return ctx != nil && errors.Is(context.Cause(ctx), ErrSuspended)
}

// saved is the content of runFile: the properties of a run that are not events.
type saved struct {
	Query   string            `json:"query"`
	Schema  json.RawMessage   `json:"schema,omitempty"`
	Model   string            `json:"model,omitempty"`
	Limits  v1.RunLimits      `json:"limits"`
	Labels  map[string]string `json:"labels,omitempty"`
	History []llm.Message     `json:"history,omitempty"`
	Tools   []ToolNote        `json:"tools,omitempty"`
	Samples int               `json:"samples,omitempty"`
	Rules   rules             `json:"rules,omitzero"`
	Prompts savedPrompts      `json:"prompts,omitzero"`
}

// writeFile writes runFile.
func (r *Run) writeFile() error {
	data, err := json.MarshalIndent(saved{
		Query:   r.q.Query,
		Schema:  r.q.Schema,
		Model:   r.q.Model,
		Limits:  r.limits,
		Labels:  r.q.Labels,
		History: r.q.History,
		Tools:   bridgeTools(r.tools),
		Samples: r.q.Samples,
		Rules:   r.rules,
		Prompts: r.prompts.saved,
	}, "", "  ")
	if err == nil {
		err = os.WriteFile(filepath.Join(r.dir, runFile), r.engine.redactor.JSON(data), 0o600)
	}
	if err != nil {
		return &v1.Error{Code: v1.CodeInternal, Op: "begin run", Err: err}
	}
	return nil
}

// ID returns the ID of the run.
func (r *Run) ID() string { return r.id }

// Dir returns the directory of the run's events.
func (r *Run) Dir() string { return r.dir }

// Cancel stops the run. Wait then returns the partial answer.
func (r *Run) Cancel() { r.cancel(errCancelled) }

// Done returns a channel that is closed when the run has ended.
func (r *Run) Done() <-chan struct{} { return r.done }

// Wait waits until the run has ended and returns what Engine.Run returns.
func (r *Run) Wait() (*Result, error) {
	<-r.done
	return r.result, r.err
}

// Events yields the run's events with numbers greater than from. It waits for new ones until the run ends.
func (r *Run) Events(ctx context.Context, from int64) iter.Seq2[v1.RunEvent, error] {
	return r.log.Follow(ctx, from)
}

// Watch is Events with the progress of nodes between the events, which is not stored (v1.KindProgress).
func (r *Run) Watch(ctx context.Context, from int64) iter.Seq2[v1.RunEvent, error] {
	return r.log.Watch(ctx, from)
}

// begin runs work in a new goroutine.
func (r *Run) begin(ctx context.Context, work func(ctx context.Context) (*Result, error)) {
	ctx, r.cancel = context.WithCancelCause(ctx)
	stop := func() {}
	if limit := r.limits.Time.Std(); limit >= 0 {
		var cancel context.CancelFunc
		remaining := max(0, limit-time.Since(r.budget.begun))
		ctx, cancel = context.WithTimeoutCause(ctx, remaining, exhausted(v1.ReasonTime, "the limit is %s", limit))
		stop = cancel
	}
	go func() {
		defer close(r.done)
		defer stop()
		defer r.unlock()
		r.result, r.err = work(ctx)
		if r.err == nil || !suspended(ctx) {
			r.emit(&node{id: "0", run: r}, 0, v1.KindRunEnded, r.result)
		}
		r.cancel(nil)
		if err := errors.Join(r.log.Err(), r.log.Close(), r.asked.Close()); err != nil {
			r.engine.o.Logger.Error("could not write all events of a run", "run", r.id, "error", err)
		}
		if err := r.staged.endSurvey(); err != nil {
			r.engine.o.Logger.Error("could not compute the checksums of the context of a run",
				"run", r.id, "error", err)
		}
	}()
}

// emit writes an event. A write error does not end the run; it is logged when the run ends.
func (r *Run) emit(n *node, turn int, kind v1.RunEventKind, data any) {
	raw, err := json.Marshal(data)
	if err != nil {
		raw, _ = json.Marshal(map[string]string{"unwritable": err.Error()})
	}
	_ = r.log.Append(v1.RunEvent{Node: n.id, Depth: n.depth, Turn: turn, Kind: kind, Data: r.engine.redactor.JSON(raw)})
}

// rootNode returns the node of the run itself.
func (r *Run) rootNode() *node {
	return &node{
		run:      r,
		id:       "0",
		budget:   r.budget,
		query:    r.q.Query,
		model:    r.model,
		staged:   r.staged,
		schema:   answerSchema{r.q.Schema, r.schema},
		sandbox:  r.q.Sandbox,
		borrowed: r.q.Sandbox != nil,
	}
}

// runNew does the work of a new run or a replay.
func (r *Run) runNew(ctx context.Context) (*Result, error) {
	n := r.rootNode()
	r.emit(n, 0, v1.KindRunStarted, v1.RunStarted{
		Run:     r.id,
		Query:   r.q.Query,
		Model:   r.model.Info().Name,
		Schema:  r.q.Schema,
		Limits:  r.limits,
		Labels:  r.q.Labels,
		Forked:  r.forked,
		Samples: r.q.Samples,
	})
	if !r.engine.o.NoCoverage {
		r.coverage = newCoverage(r.staged, maxCoverFiles, maxCoverBytes)
		defer r.coverage.close()
	}
	return r.finish(ctx, n, r.rootWork(ctx, n, nil))
}

// rootWork answers the question: by the root node, or by candidates. p is the record of a resumed run, or nil.
func (r *Run) rootWork(ctx context.Context, n *node, p *runRecord) error {
	if r.q.Samples > 1 {
		return r.sampleWork(ctx, n, p)
	}
	return n.work(ctx)
}

// finish returns the result of the run, after the root node ended with err.
func (r *Run) finish(ctx context.Context, n *node, err error) (*Result, error) {
	usage, by := r.budget.usage()
	res := &Result{
		Run:          r.id,
		Reason:       v1.ReasonAnswered,
		Turns:        n.turn,
		Cells:        r.cells.Load(),
		Usage:        usage,
		By:           by,
		Limits:       r.limits,
		Dir:          r.dir,
		Model:        r.otherModel,
		Wall:         time.Since(r.budget.begun),
		Children:     r.children.Load(),
		Cached:       r.cacheHits.Load(),
		Plain:        n.plain,
		Samples:      n.samples,
		Conversation: n.conversation(),
	}
	if r.coverage != nil {
		res.Coverage = r.coverage.report(ctx)
	}
	if m, ok := r.q.Sandbox.(Reverting); ok {
		res.StateFrom, res.Previous = m.StateFrom(), m.PreviousSession()
	}
	if a := n.accepted(); a != nil {
		res.Answer, res.Value, res.How = a.Content, a.Value, a.How
		return res, nil
	}
	err = cause(ctx, err)
	res.Reason, res.Partial = reasonOf(err), true
	res.Message = err.Error()
	if p := n.bestPartial(); p != nil {
		res.Answer, res.Value = p.Content, p.Value
	}
	if v1.CodeOf(err) == v1.CodeInternal {
		if _, ok := errors.AsType[*v1.Error](err); !ok {
			err = &v1.Error{Code: v1.CodeNoAnswer, Op: "answer", Message: "the run ended without an answer", Err: err}
		}
	}
	return res, err
}

// cause returns the error to report for work that ended with err: the cancellation cause if ctx is done, and
// CodeNoAnswer if err is nil.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); ctx.Err() != nil && c != nil {
		if errors.Is(c, errCancelled) || errors.Is(c, ErrSuspended) || errors.Is(c, context.Canceled) {
			return &v1.Error{
				Code:    v1.CodeCancelled,
				Op:      "answer",
				Message: "the run was stopped before it had an answer",
				Err:     context.Canceled,
			}
		}
		return c
	}
	if err == nil {
		return &v1.Error{Code: v1.CodeNoAnswer, Op: "answer", Message: "the run ended without an answer"}
	}
	return err
}

// node is the root of a run or one of its child runs: a conversation with a model, and a sandbox.
type node struct {
	run         *Run
	ctx         context.Context // the run's, for sandboxes that are restored during a turn
	id          string
	depth       int
	budget      *budget   // of the run, or of the candidate that this node belongs to
	sampling    *sampling // set for a candidate
	query       string
	model       llm.Model
	schema      answerSchema
	staged      *staged
	sandbox     Sandbox
	contextPath string // path of the context in the sandbox
	borrowed    bool   // the sandbox belongs to the caller: do not close it
	plain       bool
	samples     *v1.Samples // of the root of a run with candidates
	deadline    time.Time   // at which turns end, so that there is time for a last call; zero: the run has no time limit
	shown       bool        // the first message contains the whole context
	notes       []v1.ContextNote
	interpreter v1.Interpreter

	turn     int
	messages []message
	full     []llm.Message // the whole conversation, including what compaction removed from messages
	tokens   int64         // of messages

	snapshotTime, modelTime time.Duration // of the last snapshot, and of the model's reply in the last turn

	cellTime     time.Duration     // since the last snapshot
	snapshot     string            // ID of the last snapshot
	named        map[string]string // IDs of the snapshots that the model named
	repeats      int               // how often the same code had the same output in a row
	lastTurn     string            // code and output of the previous turn
	failedTurns  int               // turns in a row in which code failed
	emptyReplies int               // replies in a row with nothing to run
	refusedText  bool              // an answer in the text of a reply with code was refused before
	ranCells     bool              // at least one cell or command of a reply was run
	lastProse    string            // the text of the previous reply, if it had nothing to run
	turnUsage    llm.Usage         // of the model's reply in the last turn
	replayedTo   int               // up to this turn cells are run again without events

	recordedCells []recordedCell // the remaining recorded cells of the turn that is run again

	read map[uint64]bool // hashes of the messages of the conversation that coverage has recorded

	live progress

	inCalls atomic.Int64 // host calls of the running cell that wait for models or tools

	mu     sync.Mutex
	answer *v1.RunAnswer // guarded by mu; the accepted answer
	// ready is the answer of a cell that set answer["ready"] and still runs, or the reply to the last call after the
	// turns were used up. Guarded by mu.
	ready        *v1.RunAnswer
	draft        *v1.RunAnswer  // guarded by mu; answer["content"] so far
	lastReply    string         // guarded by mu; the text of the last reply that had text outside of code
	report       *cellReport    // guarded by mu; the report of the last cell
	loaded       *loadReport    // guarded by mu
	refusal      string         // guarded by mu; why an answer was refused
	verdict      bool           // guarded by mu; the interpreter's reply to askBridge
	textAnswer   bool           // guarded by mu; the running cell evaluates an answer in the text of a reply
	looked       bool           // guarded by mu; code used the context, or called a model or a tool
	refusedFirst bool           // guarded by mu; an answer was refused because nothing of the context was read
	childPrompts map[string]int // guarded by mu; occurrences of equal child prompts in a turn
}

// message is a message of the conversation with its number of tokens.
type message struct {
	llm.Message
	tokens int64
}

// accepted returns the accepted answer, or nil.
func (n *node) accepted() *v1.RunAnswer {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.answer
}

// bestPartial returns the best partial answer, or nil. It is used if no answer was accepted.
func (n *node) bestPartial() *v1.RunAnswer {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.ready != nil:
		return n.ready
	case n.draft != nil:
		return n.draft
	case n.lastReply != "":
		return &v1.RunAnswer{Content: n.lastReply}
	}
	return nil // code is not an answer
}

// contextNames matches names in code that are the context, or that can read it or the variables of the interpreter.
var contextNames = lazyregexp.New(
	`\b(?:context(?:_\d+)?|history|search|chunks|SHOW_VARS|open|eval|exec|globals|locals|vars)\b`)

// noteCode records whether code uses the context.
func (n *node) noteCode(code string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.looked = n.looked || contextNames().MatchString(code)
}

// noteLook records that code called a model or a tool, or ran a command.
func (n *node) noteLook() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.looked = true
}

// refuseUnread returns the reason to refuse an answer in the first turn: no code has used the context, and no model or
// tool was called, so the model has guessed. An answer is refused once for this reason, because a question may not need
// its context.
//
// Preconditions: n.mu is held.
func (n *node) refuseUnread() string {
	if n.run.rules.Version == 0 || n.run.engine.o.AcceptUnread || n.turn != 1 || n.looked || n.refusedFirst ||
		n.borrowed || n.shown || len(n.staged.Contexts) == 0 {
		return ""
	}
	n.refusedFirst = true
	return "nothing of the context was read yet; look at it first, then submit the answer " +
		"(submit it again if it does not depend on the context)"
}

// accept accepts an answer that meets the schema and returns "". Otherwise it returns the reason for the refusal.
func (n *node) accept(a *v1.RunAnswer) string {
	why := n.schema.check(a)
	n.mu.Lock()
	defer n.mu.Unlock()
	if why == "" {
		why = n.refuseUnread()
	}
	if why != "" {
		n.refusal = why
		return why
	}
	if n.answer == nil {
		n.answer = a
		n.run.emit(n, n.turn, v1.KindAnswer, a)
	}
	return ""
}

// storePartial stores an answer as a partial one if it meets the schema, and returns "". Otherwise it returns the
// reason for the refusal.
func (n *node) storePartial(a *v1.RunAnswer) string {
	if why := n.schema.check(a); why != "" {
		return why
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ready = a
	return ""
}
