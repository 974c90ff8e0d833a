package rlm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/trajectory"
	"github.com/recluse-dev/recluse/llm"
)

const (
	contextDir = "context"
	runFile    = "run.json"
)

// Run is one question on its way to an answer.
type Run struct {
	engine *Engine
	id     string
	dir    string
	q      Question
	limits v1.RunLimits // every field is set
	schema *jsonschema.Resolved
	model  llm.Model
	budget *budget
	cache  *Cache
	staged *staged
	log    *trajectory.Log
	tools  []Tool
	tape   *tape // replies of an earlier program; nil: none

	otherModel string // the name of model, if the run began with another

	slots chan struct{} // model calls at once, in the whole tree

	calls, cells, kids, cached atomic.Int64
	forked                     string
	models                     func(depth int, name string) (llm.Model, error)
	unlock                     func()
	coverage                   *coverage

	mu       sync.Mutex
	children map[int]chan struct{} // guarded by mu; child runs at once, by depth

	cancel context.CancelCauseFunc
	done   chan struct{}
	result *Result // set before done is closed
	err    error
}

// errCancelled is the cause of a run that its caller has stopped.
var errCancelled = errors.New("the run was stopped")

// ErrLeft is what a program cancels the context of its runs with when it ends and another one is to go on with them. Such a run is kept as if the program had
// been killed: nothing says that it has ended, and with Options.Durable its machine stays.
var ErrLeft = errors.New("the run was left to the next program")

// left says that a run is being left.
func left(ctx context.Context) bool { return ctx != nil && errors.Is(context.Cause(ctx), ErrLeft) }

// saved is what a run's directory says about it besides its events.
type saved struct {
	Query   string            `json:"query"`
	Schema  json.RawMessage   `json:"schema,omitempty"`
	Model   string            `json:"model,omitempty"`
	Limits  v1.RunLimits      `json:"limits"`
	Labels  map[string]string `json:"labels,omitempty"`
	History []llm.Message     `json:"history,omitempty"`
	Tools   []ToolNote        `json:"tools,omitempty"`
}

func (r *Run) writeFile() error {
	data, err := json.MarshalIndent(saved{r.q.Query, r.q.Schema, r.q.Model, r.limits, r.q.Labels, r.q.History, bridgeTools(r.tools)}, "", "  ")
	if err == nil {
		err = os.WriteFile(filepath.Join(r.dir, runFile), data, 0o600)
	}
	if err != nil {
		return &v1.Error{Code: v1.CodeInternal, Op: "begin run", Err: err}
	}
	return nil
}

// ID names the run.
func (r *Run) ID() string { return r.id }

// Dir is where its events are kept.
func (r *Run) Dir() string { return r.dir }

// Cancel stops it. Wait then gives what there is of an answer.
func (r *Run) Cancel() { r.cancel(errCancelled) }

// Done is closed when the run has ended.
func (r *Run) Done() <-chan struct{} { return r.done }

// Wait waits for its end.
func (r *Run) Wait() (*Result, error) {
	<-r.done
	return r.result, r.err
}

// Events gives the run's events after number from, those to come included, until its end.
func (r *Run) Events(ctx context.Context, from int64) iter.Seq2[v1.RunEvent, error] {
	return r.log.Follow(ctx, from)
}

// begin runs the work beside the caller.
func (r *Run) begin(ctx context.Context, work func(ctx context.Context) (*Result, error)) {
	ctx, r.cancel = context.WithCancelCause(ctx)
	stop := func() {}
	if limit := r.limits.Time.Std(); limit >= 0 {
		var cancel context.CancelFunc
		left := max(0, limit-time.Since(r.budget.begun))
		ctx, cancel = context.WithTimeoutCause(ctx, left, exhausted(v1.ReasonTime, "%s are over", limit))
		stop = cancel
	}
	go func() {
		defer close(r.done)
		defer stop()
		defer r.unlock()
		r.result, r.err = work(ctx)
		if r.err == nil || !left(ctx) {
			r.emit(&node{id: "0", run: r}, 0, v1.KindRunEnded, r.result)
		}
		r.cancel(nil)
		if err := errors.Join(r.log.Err(), r.log.Close()); err != nil {
			r.engine.o.Logger.Error("the events of a run are not whole", "run", r.id, "error", err)
		}
	}()
}

// emit writes an event. A failure to write does not end the run; it is told at the end.
func (r *Run) emit(n *node, turn int, kind v1.RunEventKind, data any) {
	raw, err := json.Marshal(data)
	if err != nil {
		raw, _ = json.Marshal(map[string]string{"unwritable": err.Error()})
	}
	_ = r.log.Append(v1.RunEvent{Node: n.id, Depth: n.depth, Turn: turn, Kind: kind, Data: raw})
}

// rootNode is the run's own node.
func (r *Run) rootNode() *node {
	return &node{run: r, id: "0", query: r.q.Query, model: r.model, staged: r.staged, schema: r.schema, machine: r.q.Machine, borrowed: r.q.Machine != nil}
}

// fresh is a run from its beginning.
func (r *Run) fresh(ctx context.Context) (*Result, error) {
	n := r.rootNode()
	r.emit(n, 0, v1.KindRunStarted, v1.RunStarted{
		Run: r.id, Query: r.q.Query, Model: r.model.Info().Name, Schema: r.q.Schema, Limits: r.limits, Labels: r.q.Labels, Forked: r.forked,
	})
	if !r.engine.o.NoCoverage {
		r.coverage = newCoverage(r.staged, maxCoverFiles, maxCoverBytes)
		defer r.coverage.close()
	}
	err := n.work(ctx)
	return r.finish(ctx, n, err)
}

// finish makes the result of the root node.
func (r *Run) finish(ctx context.Context, n *node, err error) (*Result, error) {
	usage, by := r.budget.usage()
	res := &Result{
		Run: r.id, Reason: v1.ReasonAnswered, Turns: n.turn, Cells: r.cells.Load(), Usage: usage, By: by, Limits: r.limits, Dir: r.dir, Model: r.otherModel,
		Wall: time.Since(r.budget.begun), Children: r.kids.Load(), Cached: r.cached.Load(), Plain: n.plain, Conversation: n.conversation(),
	}
	if r.coverage != nil {
		res.Coverage = r.coverage.report(ctx)
	}
	if m, ok := r.q.Machine.(Reverting); ok {
		res.StateFrom, res.Previous = m.StateFrom(), m.PreviousSession()
	}
	if a := n.taken(); a != nil {
		res.Answer, res.Value = a.Content, a.Value
		return res, nil
	}
	err = cause(ctx, err)
	res.Reason, res.Partial = reasonOf(err), true
	res.Message = err.Error()
	if p := n.best(); p != nil {
		res.Answer, res.Value = p.Content, p.Value
	}
	if v1.CodeOf(err) == v1.CodeInternal {
		if _, ok := errors.AsType[*v1.Error](err); !ok {
			err = &v1.Error{Code: v1.CodeNoAnswer, Op: "answer", Message: "the run ended without an answer", Err: err}
		}
	}
	return res, err
}

// cause is what ended a context, where that is why something failed.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); ctx.Err() != nil && c != nil {
		if errors.Is(c, errCancelled) || errors.Is(c, ErrLeft) || errors.Is(c, context.Canceled) {
			return &v1.Error{Code: v1.CodeCancelled, Op: "answer", Message: "the run was stopped before it had an answer", Err: context.Canceled}
		}
		return c
	}
	if err == nil {
		return &v1.Error{Code: v1.CodeNoAnswer, Op: "answer", Message: "the run ended without an answer"}
	}
	return err
}

// node is the run or one of its children: a conversation with a model, and a machine.
type node struct {
	run      *Run
	ctx      context.Context // the run's, for machines that are made on the way
	id       string
	depth    int
	query    string
	model    llm.Model
	schema   *jsonschema.Resolved // of the root only
	staged   *staged
	machine  Machine
	inside   string // where the context lies in it
	borrowed bool   // the machine is not ours to close
	plain    bool
	notes    []v1.ContextNote

	turn     int
	messages []message
	full     []llm.Message // everything that was said, also what compaction took out of messages
	tokens   int64         // of messages

	snapTook, modelTook time.Duration // how long the last snapshot took, and the model for the last turn

	cellTime time.Duration // since the last snapshot
	snapshot string        // the last one
	named    map[string]string
	repeats  int    // how often the same code gave the same output
	lastCode string // of the turn before
	errors   int    // turns in a row in which code failed
	nothing  int    // replies in a row with nothing to run
	refused  bool   // a textual answer beside code was refused once
	silentTo int    // up to this turn cells are run again, and nothing is told

	pastCells []pastCell // of the turn that is run again, those to come

	inCalls atomic.Int64 // calls of the running cell to models

	mu       sync.Mutex
	handedIn *v1.RunAnswer  // guarded by mu; the answer
	ready    *v1.RunAnswer  // guarded by mu; answer["ready"] was set and the cell goes on, or it was asked for when turns were over
	draft    *v1.RunAnswer  // guarded by mu; answer["content"] so far
	lastSaid string         // guarded by mu; the last reply's text
	afterRun *afterNote     // guarded by mu; what the last cell left
	loaded   *loadedNote    // guarded by mu
	refusal  string         // guarded by mu; why an answer was not taken
	seen     map[string]int // guarded by mu; occurrences of equal child prompts in a turn
}

// message is one message with its size, which is counted once.
type message struct {
	llm.Message
	tokens int64
}

func (n *node) taken() *v1.RunAnswer {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.handedIn
}

// best is what can be given when no answer was handed in.
func (n *node) best() *v1.RunAnswer {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.ready != nil:
		return n.ready
	case n.draft != nil:
		return n.draft
	case n.lastSaid != "":
		return &v1.RunAnswer{Content: n.lastSaid}
	}
	return nil
}

// accept takes an answer if it meets the schema; else it says why not.
func (n *node) accept(a *v1.RunAnswer) string {
	if why := n.check(a); why != "" {
		n.mu.Lock()
		n.refusal = why
		n.mu.Unlock()
		return why
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.handedIn == nil {
		n.handedIn = a
		n.run.emit(n, n.turn, v1.KindAnswer, a)
	}
	return ""
}

// offer keeps an answer that is not handed in, if it meets the schema; else it says why not.
func (n *node) offer(a *v1.RunAnswer) string {
	if why := n.check(a); why != "" {
		return why
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ready = a
	return ""
}

// check holds an answer against the schema, and fills in its value.
func (n *node) check(a *v1.RunAnswer) string {
	if n.schema == nil {
		return ""
	}
	raw := a.Value
	if raw == nil {
		raw = json.RawMessage(stripFence(a.Content))
	}
	var doc any
	if err := json.Unmarshal(raw, &doc); err != nil {
		return fmt.Sprintf("the answer must be JSON that meets the schema, and this is no JSON: %v", err)
	}
	if err := n.schema.Validate(doc); err != nil {
		return "the answer does not meet the schema: " + err.Error()
	}
	a.Value = raw
	return ""
}
