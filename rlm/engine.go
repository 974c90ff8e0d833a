package rlm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/internal/trajectory"
	"github.com/recluse-dev/recluse/internal/xdg"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/sandbox"
)

// The defaults of a run that are no limits.
const (
	DefaultParallel    = 16      // model calls at once in the whole tree
	DefaultChildren    = 4       // child runs at once on each level
	DefaultOutputChars = 20_000  // of a turn's output that the model sees
	DefaultPlainBelow  = 1 << 14 // tokens; below, a plain call is better than a run
	DefaultCellTimeout = 60 * time.Second
	DefaultSnapshots   = 30 * time.Second // of cell time between two snapshots
)

// Blocks says how many blocks of a reply are run.
type Blocks string

// The policies.
const (
	// FirstBlock cuts the generation behind the first block, so that a model cannot invent its output.
	FirstBlock Blocks = "first"
	// AllBlocks runs every block of a reply in order.
	AllBlocks Blocks = "all"
)

// Options configures an Engine.
type Options struct {
	// Models gives the model for a depth: 0 is the run itself, 1 what it calls, and so on. name is what the code asked for
	// with model=, else empty.
	Models func(depth int, name string) (llm.Model, error)
	// Sandboxes makes the machines.
	Sandboxes Sandboxes
	// Spec is what each machine is made from; mounts and memory for the context come on top.
	Spec sandbox.Spec
	// Gate judges what the models write before it runs; nil: nobody does. What it refuses is told to the model.
	Gate gate.Gate
	// Tenant is for whom the gate is asked: only they can answer what it asks a person.
	Tenant string
	// Limits bounds a run; fields that are not set are those of DefaultLimits.
	Limits v1.RunLimits
	// Dir is where runs are kept; empty: below the user's data directory.
	Dir string

	Blocks Blocks // empty: FirstBlock
	// PlainBelow is the size of a context in tokens below which the model is asked directly; 0: DefaultPlainBelow, negative: never.
	PlainBelow int64
	// Parallel and Children bound what happens at once.
	Parallel, Children int
	// ReplyTokens is the longest reply that is asked for; 0: 8192, or the model's own limit where neither tokens nor money are limited.
	ReplyTokens int64
	// OutputChars is how much of a turn's output the model sees.
	OutputChars int
	// CellTimeout is how long a cell may work; time in which it waits for models does not count.
	CellTimeout time.Duration
	// SnapshotEvery is the cell time after which a snapshot is taken while the model is asked; 0: DefaultSnapshots, negative: never.
	SnapshotEvery time.Duration
	// Durable keeps the sandbox when this program dies, until the run is resumed.
	Durable bool
	// ErrorStrings lets failed calls return "Error: …" instead of raising, as other implementations do.
	ErrorStrings bool

	Prompts Prompts
	Tools   []Tool
	// Cache keeps replies to identical sub-calls; nil: one for each run.
	Cache *Cache
	// NoCoverage leaves out the count of what models have read of the context.
	NoCoverage bool
	Logger     *slog.Logger
}

// Engine answers questions over contexts of any size. Its methods may be called from several goroutines.
type Engine struct {
	o   Options
	dir string
}

// New makes an engine.
func New(o Options) (*Engine, error) {
	if o.Models == nil {
		return nil, NoModel()
	}
	if o.Sandboxes == nil {
		return nil, &v1.Error{Code: v1.CodeNoBackend, Op: "make engine", Message: "no sandboxes to run code in", Remedy: "give Options.Sandboxes, e.g. FromBackend"}
	}
	o.Limits = o.Limits.Over(DefaultLimits())
	if o.Blocks == "" {
		o.Blocks = FirstBlock
	}
	if o.Blocks != FirstBlock && o.Blocks != AllBlocks {
		return nil, &v1.Error{Code: v1.CodeInvalidRequest, Op: "make engine", Message: fmt.Sprintf("blocks %q: there are %q and %q", o.Blocks, FirstBlock, AllBlocks)}
	}
	o.PlainBelow = or(o.PlainBelow, DefaultPlainBelow)
	o.Parallel = or(o.Parallel, DefaultParallel)
	o.Children = or(o.Children, DefaultChildren)
	o.OutputChars = or(o.OutputChars, DefaultOutputChars)
	o.CellTimeout = or(o.CellTimeout, DefaultCellTimeout)
	o.SnapshotEvery = or(o.SnapshotEvery, DefaultSnapshots)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	prompts, err := o.Prompts.parse()
	if err != nil {
		return nil, err
	}
	o.Prompts = prompts
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
	return &Engine{o: o, dir: dir}, nil
}

// Routed takes the models of a route for Options.Models.
func Routed(r *llm.Routing) func(depth int, name string) (llm.Model, error) {
	return func(depth int, name string) (llm.Model, error) { return r.Named(name, depth) }
}

// NoModel is the error of somebody who has configured no model.
func NoModel() error {
	return &v1.Error{
		Code: v1.CodeModelMissing, Op: "choose model", Message: "no model is configured",
		Remedy: "set OPENAI_API_KEY or ANTHROPIC_API_KEY, or start Ollama on this machine, or name a scripted model for a try without any",
	}
}

func or[T comparable](v, other T) T {
	var zero T
	if v == zero {
		return other
	}
	return v
}

// Question is what a run is to answer.
type Question struct {
	Query  string
	Inputs []Input
	// Schema is the JSON Schema that an answer must meet; nil: any text will do.
	Schema json.RawMessage
	// Model is asked for by name instead of the default one.
	Model  string
	Limits v1.RunLimits // fields that are not set are the engine's
	Labels map[string]string
	// Gate is how much the gate weighs in this run, though never below its floor, and Role chooses the thesaurus; empty: as the gate has it.
	// They are kept as labels: whoever goes on with the run has the same.
	Gate gate.Mode
	Role string
	// History is the conversation before this question; code finds it as history.
	History []llm.Message
	// Machine is used instead of a new one, and is not closed. Code finds the variables and contexts of earlier questions in it.
	Machine Machine
}

// Run answers a question. The result is there also beside an error, once the run had begun: with what there was of an answer,
// and what it took. The error is nil only if an answer was handed in.
func (e *Engine) Run(ctx context.Context, q Question) (*Result, error) {
	r, err := e.Start(ctx, q)
	if err != nil {
		return nil, err
	}
	return r.Wait()
}

// Start begins a run and gives it while it goes on. What is wrong with the question itself is told at once.
func (e *Engine) Start(ctx context.Context, q Question) (*Run, error) {
	r, err := e.newRun(ctx, q, newRunID())
	if err != nil {
		return nil, err
	}
	r.begin(ctx, func(ctx context.Context) (*Result, error) { return r.fresh(ctx) })
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
	r.q.Inputs = nil // they are on disk: a run that takes hours is not to hold them in memory
	if err := r.writeFile(); err != nil {
		return fail(err)
	}
	if r.unlock, err = lockRun(dir); err != nil {
		return fail(err)
	}
	if r.log, err = trajectory.Create(dir); err != nil {
		r.unlock()
		return fail(err)
	}
	return r, nil
}

// prepare is the part of a run that needs no disk.
func (e *Engine) prepare(q Question, id string) (*Run, error) {
	if err := gate.CheckRole(e.o.Gate, q.Role); err != nil {
		return nil, err
	}
	if err := q.labelGate(); err != nil {
		return nil, err
	}
	r := &Run{engine: e, id: id, q: q, limits: q.Limits.Over(e.o.Limits), cache: e.o.Cache, models: e.o.Models, tools: e.o.Tools, unlock: func() {}}
	if len(q.Schema) > 0 {
		s, err := compileSchema(q.Schema)
		if err != nil {
			return nil, err
		}
		r.schema = s
	}
	r.budget = newBudget(r.limits)
	r.slots = make(chan struct{}, e.o.Parallel)
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
