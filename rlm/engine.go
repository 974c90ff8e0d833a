package rlm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"text/template"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/internal/redact"
	"github.com/recluse-dev/recluse/internal/trajectory"
	"github.com/recluse-dev/recluse/internal/xdg"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/sandbox"
)

// Defaults of Options. DefaultLimits has those of the limits.
const (
	DefaultPlainBelow = 1 << 14          // tokens; for a smaller context one plain call is better than a run with code
	DefaultSnapshots  = 30 * time.Second // cell time between two snapshots
)

// Blocks is the policy for replies with several blocks of code.
type Blocks string

// The policies.
const (
	// FirstBlock stops the generation after the first block, so that a model cannot invent the output of the block.
	FirstBlock Blocks = "first"
	// AllBlocks runs every block of a reply in order.
	AllBlocks Blocks = "all"
)

// Options configures an Engine.
type Options struct {
	// Models returns the model for a depth: 0 is the run itself, 1 its sub-calls and child runs, and so on. name is the
	// model= argument of the call in the code, or empty.
	Models func(depth int, name string) (llm.Model, error)
	// Sandboxes makes the sandboxes.
	Sandboxes Sandboxes
	// Spec is the spec of each sandbox. The run adds mounts and memory for the context.
	Spec sandbox.Spec
	// Gate judges the code of models before it runs; nil: no gate. The model sees why code was refused.
	Gate gate.Gate
	// Tenant is passed to the gate. Only this tenant can answer the gate's questions.
	Tenant string
	// Limits bounds a run; fields that are not set have the values of DefaultLimits.
	Limits v1.RunLimits
	// Dir is the directory of the stored runs; empty: runs in the user's data directory.
	Dir string

	Blocks Blocks // empty: FirstBlock
	// PlainBelow is the size of a context in tokens below which the question and the context are sent to the model in
	// one call, without a sandbox; 0: DefaultPlainBelow, negative: never. A run with tools always has a sandbox.
	PlainBelow int64
	// SnapshotEvery is the cell time between two snapshots. They are taken while the run waits for the model;
	// 0: DefaultSnapshots, negative: never.
	SnapshotEvery time.Duration
	// Durable keeps the sandbox when this program dies, until the run is resumed.
	Durable bool
	// ErrorStrings makes failed calls in code return "Error: …" instead of raising an exception, as other
	// implementations do.
	ErrorStrings bool
	// Dialect makes lines of a reply that begin with a command word, such as RUN(…) or CODE(…), actions.
	Dialect bool
	// AcceptUnread accepts an answer in the first turn although nothing of the context was read. By default the model
	// must submit such an answer twice.
	AcceptUnread bool

	Prompts Prompts
	Tools   []Tool
	// Cache stores the replies to sub-calls, to answer identical ones; nil: one cache for each run.
	Cache *Cache
	// MaxPrompts bounds the prompts that are stored with a run, in bytes; 0: DefaultMaxPrompts, negative: none are stored.
	MaxPrompts int64
	// Secrets are never stored with a run, nor are the keys of providers in the environment. See llm.Set.Secrets.
	Secrets []string
	// NoCoverage turns off Result.Coverage.
	NoCoverage bool
	Logger     *slog.Logger
}

// Engine answers questions over contexts of any size. It is safe for concurrent use.
type Engine struct {
	o        Options
	dir      string
	prompts  map[string]*template.Template // those of Options.Prompts
	redactor redact.Redactor
}

// New returns an engine.
func New(o Options) (*Engine, error) {
	if o.Models == nil {
		return nil, NoModel()
	}
	if o.Sandboxes == nil {
		return nil, &v1.Error{
			Code:    v1.CodeNoBackend,
			Op:      "make engine",
			Message: "Options.Sandboxes is not set",
			Remedy:  "set it, for example to FromBackend(backend)",
		}
	}
	o.Limits = o.Limits.Over(DefaultLimits())
	if o.Blocks == "" {
		o.Blocks = FirstBlock
	}
	if o.Blocks != FirstBlock && o.Blocks != AllBlocks {
		return nil, &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "make engine",
			Message: fmt.Sprintf("unknown value %q of Options.Blocks", o.Blocks),
			Remedy:  fmt.Sprintf("use %q or %q", FirstBlock, AllBlocks),
		}
	}
	o.PlainBelow = or(o.PlainBelow, DefaultPlainBelow)
	o.MaxPrompts = or(o.MaxPrompts, DefaultMaxPrompts)
	o.SnapshotEvery = or(o.SnapshotEvery, DefaultSnapshots)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	prompts, err := o.Prompts.parse()
	if err != nil {
		return nil, err
	}
	if err := checkTools(o.Tools); err != nil {
		return nil, err
	}
	dir := o.Dir
	if dir == "" {
		data, err := xdg.Data()
		if err != nil {
			return nil, err
		}
		dir = filepath.Join(data, "runs")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: "make engine", Err: err}
	}
	return &Engine{
		o:        o,
		dir:      dir,
		prompts:  prompts,
		redactor: redact.New(append(llm.Config{}.Secrets(), o.Secrets...)),
	}, nil
}

// Routed returns a function for Options.Models that uses the models of r.
func Routed(r *llm.Routing) func(depth int, name string) (llm.Model, error) {
	return func(depth int, name string) (llm.Model, error) { return r.Named(name, depth) }
}

// NoModel returns the error that no model is configured.
func NoModel() error {
	return &v1.Error{
		Code:    v1.CodeModelMissing,
		Op:      "choose model",
		Message: "no model is configured",
		Remedy: "set OPENAI_API_KEY or ANTHROPIC_API_KEY, or start Ollama on this host, " +
			"or use a scripted model to try it without a real one",
	}
}

// or returns v, or other if v is the zero value.
func or[T comparable](v, other T) T {
	var zero T
	if v == zero {
		return other
	}
	return v
}

// Question is the input of a run.
type Question struct {
	Query  string
	Inputs []Input
	// Schema is the JSON Schema of the answer; nil: the answer is any text.
	Schema json.RawMessage
	// Model is the name of the model for the run; empty: the default one.
	Model  string
	Limits v1.RunLimits // fields that are not set have the engine's values
	// Samples is the number of candidates that answer the question, each with an equal part of the budget. The answer is
	// the one on which most of them agree. 0 or 1: one.
	Samples int
	// Prompt is the name of the prompt profile for the run and its children; empty: the rules of Options.Prompts decide.
	// System is a template for their system prompt, over PromptData; empty: that of the profile.
	Prompt, System string
	Labels         map[string]string
	// Gate is the gate's mode in this run, though never below the gate's floor. Role chooses the thesaurus of the gate.
	// Empty: the gate's own settings. Both are stored as labels of the run, so that a resumed run has the same.
	Gate gate.Mode
	Role string
	// History is the conversation before this question. In code it is the variable history.
	History []llm.Message
	// Sandbox is used instead of a new sandbox, and is not closed. It still has the variables and contexts of earlier
	// questions.
	Sandbox Sandbox
}

// Run answers a question. Once the run has started, it returns a result also together with an error: the partial
// answer and the usage. The error is nil only if the model submitted an answer.
func (e *Engine) Run(ctx context.Context, q Question) (*Result, error) {
	r, err := e.Start(ctx, q)
	if err != nil {
		return nil, err
	}
	return r.Wait()
}

// Start starts a run and returns without waiting for its end. It returns an error if the question is invalid.
func (e *Engine) Start(ctx context.Context, q Question) (*Run, error) {
	r, err := e.newRun(ctx, q, newRunID())
	if err != nil {
		return nil, err
	}
	r.begin(ctx, func(ctx context.Context) (*Result, error) { return r.runNew(ctx) })
	return r, nil
}

func newRunID() string {
	return time.Now().UTC().Format("20060102-150405-") + ids.Hex(4)
}

// newRun checks the question, makes the run's directory and stages its context.
func (e *Engine) newRun(ctx context.Context, q Question, id string) (*Run, error) {
	r, err := e.prepare(q, id)
	if err != nil {
		return nil, err
	}
	if r.model, err = r.modelFor(0, q.Model); err != nil {
		return nil, err
	}
	dir := filepath.Join(e.dir, id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: "begin run", Err: err}
	}
	r.dir = dir
	fail := func(err error) (*Run, error) {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if r.staged, err = stage(ctx, filepath.Join(dir, contextDir), q.Inputs); err != nil {
		return fail(err)
	}
	r.q.Inputs = nil // they are on disk now: a run that takes hours must not hold them in memory
	if err := r.writeFile(); err != nil {
		return fail(err)
	}
	if r.unlock, err = lockRun(dir); err != nil {
		return fail(err)
	}
	if err := r.openPrompts(); err != nil {
		r.unlock()
		return fail(err)
	}
	if r.log, err = trajectory.Create(dir); err != nil {
		_ = r.asked.Close() // nothing was written
		r.unlock()
		return fail(err)
	}
	if err := r.staged.beginSurvey(dir); err != nil {
		_ = errors.Join(r.asked.Close(), r.log.Close())
		r.unlock()
		return fail(err)
	}
	return r, nil
}

// prepare checks the question and returns a run that has nothing on disk yet.
func (e *Engine) prepare(q Question, id string) (*Run, error) {
	if err := gate.CheckRole(e.o.Gate, q.Role); err != nil {
		return nil, err
	}
	if err := q.labelGate(); err != nil {
		return nil, err
	}
	if err := q.checkSamples(); err != nil {
		return nil, err
	}
	limits := q.Limits.Over(e.o.Limits)
	if *limits.Parallel < 1 || *limits.Children < 1 {
		return nil, &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "begin run",
			Message: "the limits allow no concurrent calls or child runs: the least value is 1",
		}
	}
	r := &Run{
		engine: e,
		id:     id,
		q:      q,
		limits: limits,
		cache:  e.o.Cache,
		models: e.o.Models,
		tools:  e.o.Tools,
		rules:  rules{Version: rulesVersion, Dialect: e.o.Dialect},
		unlock: func() {},
	}
	if len(q.Schema) > 0 {
		s, err := compileSchema(q.Schema)
		if err != nil {
			return nil, err
		}
		r.schema = s
	}
	var err error
	r.prompts, err = savedPrompts{Profile: q.Prompt, System: q.System, Rules: e.o.Prompts.Profiles}.parse()
	if err != nil {
		return nil, err
	}
	r.budget = newBudget(r.limits)
	r.slots = make(chan struct{}, *r.limits.Parallel)
	if r.cache == nil {
		r.cache = NewCache(0)
	}
	r.done = make(chan struct{})
	return r, nil
}

// modelFor chooses the model for a depth.
func (r *Run) modelFor(depth int, name string) (llm.Model, error) {
	return chooseModel(r.models, depth, name)
}

func chooseModel(models func(int, string) (llm.Model, error), depth int, name string) (llm.Model, error) {
	m, err := models(depth, name)
	if err == nil && m == nil {
		err = NoModel()
	}
	if err == nil {
		return m, nil
	}
	if _, ok := errors.AsType[*v1.Error](err); ok {
		return nil, err
	}
	return nil, &v1.Error{Code: v1.CodeModelMissing, Op: "choose model", Message: name, Err: err}
}
