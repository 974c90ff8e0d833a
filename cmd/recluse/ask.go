package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/internal/config"
	"github.com/recluse-dev/recluse/internal/xdg"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox"
)

// subModels is the label under which a run remembers which models it gave to its calls.
const subModels = "sub_model"

// askOptions is what the user says about a question.
type askOptions struct {
	machine
	route
	thrift
	limits   v1.RunLimits
	contexts []string
	mcp      []string
	schema   string
	session  string
	gate     string
	role     string
	quiet    bool
}

// route is which models to ask.
type route struct {
	model string
	sub   []string
}

func (r *route) register(f *pflag.FlagSet) {
	f.StringVar(&r.model, "model", "", "`provider/model` that works on the question, several with commas: the next when one fails (default as configured, or one that is found)")
	f.StringArrayVar(&r.sub, "sub-model", nil, "`provider/model` for the calls it makes; repeated for deeper ones (default the same)")
}

// registerLimits adds a flag for each limit of a run.
func registerLimits(f *pflag.FlagSet, l *v1.RunLimits) {
	for _, limit := range l.Fields() {
		f.Var(limit, limit.Flag, limit.Doc)
	}
}

// thrift is how a run saves calls: by none at all where the context is small, and by those of earlier runs.
type thrift struct {
	plain int
	cache string

	flags *pflag.FlagSet
}

func (t *thrift) register(f *pflag.FlagSet) {
	t.flags = f
	f.IntVar(&t.plain, "plain-below", 0, "`tokens` of a context below which the model is simply given it; 0: never (default as configured, 16384)")
	f.StringVar(&t.cache, "cache", "", "keep this `size` of replies to calls from code on disk, and use those of earlier runs; 0: none (default as configured, none)")
}

// said reports whether any of it was given.
func (t *thrift) said() bool { return t.flags.Changed("plain-below") || t.flags.Changed("cache") }

// over puts what flags say over what is configured.
func (t *thrift) over(m config.Models) (config.Models, error) {
	if t.flags.Changed("plain-below") {
		if t.plain < 0 {
			return m, usage("--plain-below: %d is below zero", t.plain)
		}
		m.PlainBelow = t.plain
	}
	if t.flags.Changed("cache") {
		n, err := config.ParseSize(t.cache)
		if err != nil {
			return m, usage("--cache: %v", err)
		}
		m.Cache = n
	}
	return m, nil
}

func (a *app) askCommand() *cobra.Command {
	var o askOptions
	c := &cobra.Command{
		Use:   "ask QUESTION",
		Short: "Answer a question over files of any size: a model works on them in a sandbox",
		Long: `Answer a question over texts that are far larger than a model's window.

The context becomes a variable in a sandbox, and a model writes code there, turn by turn: it looks, filters, and asks models about
the pieces it has chosen. One budget holds for everything together. A small context is simply given to the model.

The answer is printed on stdout and everything else on stderr: a live tree on a terminal, else plain lines. With --json stdout is
the run's events, one JSON object a line, the last of them with the result. Ctrl-C stops the run and prints what there is of an
answer; a second one leaves at once. The run is kept: see recluse runs.

Exit status: 0 with an answer, 1 when the run ended without one (what there is is printed), 130 after Ctrl-C, 125 when it could not begin.`,
		Example: `  recluse ask "Which three people are mentioned most?" --context big.txt
  recluse ask "What changed between the two?" --context old/ --context new/ --model anthropic/claude-sonnet-5-5 --sub-model ollama/qwen3:8b
  recluse ask "List all invoices" --context mails.json --schema invoices.schema.json --max-cost 2 --max-time 10m --json
  recluse ask "Which of these tickets are still open?" --context mails/ --mcp "tracker=tracker-mcp --stdio" --mcp wiki=https://wiki.example/mcp
  journalctl -b | recluse ask "Why did it not start?" --context -`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return a.ask(c.Context(), &o, args[0]) },
	}
	f := c.Flags()
	f.StringArrayVar(&o.contexts, "context", nil, "`file` or directory that the question is about; - is the input (repeatable)")
	registerMCP(f, &o.mcp)
	f.StringVar(&o.schema, "schema", "", "`file` with the JSON Schema that the answer must meet")
	f.StringVar(&o.session, "session", "", "work in the session of this `name`, whose variables stay for the next question")
	f.StringVar(&o.gate, "gate", "", "judge the model's code before it runs: off, warn or block (default as configured)")
	f.StringVar(&o.role, "role", "", "judge it by the thesaurus of this `role`")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print nothing but the answer")
	o.route.register(f)
	registerLimits(f, &o.limits)
	o.thrift.register(f)
	o.machine.register(f)
	a.completeSession(c, "session")
	return c
}

func registerMCP(f *pflag.FlagSet, servers *[]string) {
	f.StringArrayVar(servers, "mcp", nil, "`NAME=COMMAND` or NAME=URL of an MCP server whose tools the code can call (repeatable)")
}

func (a *app) ask(ctx context.Context, o *askOptions, query string) error {
	if strings.TrimSpace(query) == "" {
		return usage("the question is empty")
	}
	cfg, err := a.config()
	if err != nil {
		return err
	}
	q := rlm.Question{Query: query, Model: o.model, Limits: o.limits, Gate: gate.Mode(o.gate), Role: o.role}
	if q.Schema, err = readSchema(o.schema); err != nil {
		return err
	}
	ctx, w := a.watch(ctx)
	defer w.stop()
	if o.session != "" {
		return a.askSession(ctx, w, o, q)
	}
	for _, path := range o.contexts {
		q.Inputs = append(q.Inputs, a.contextOf(path))
	}
	if len(o.sub) > 0 {
		q.Labels = map[string]string{subModels: strings.Join(o.sub, " ")}
	}
	models, err := o.over(cfg.Models)
	if err != nil {
		return err
	}
	e, done, err := a.engine(ctx, w, &o.machine, models, llm.Route{Root: o.model, Sub: o.sub}, o.mcp)
	if err != nil {
		return cause(ctx, err)
	}
	defer done()
	return a.follow(ctx, w, o.quiet, func(ctx context.Context) (following, error) { return started(e.Start(ctx, q)) })
}

func (a *app) contextOf(path string) rlm.Input {
	if path == "-" {
		return rlm.Reader("stdin", a.stdin)
	}
	return rlm.File(path)
}

func readSchema(path string) (json.RawMessage, error) {
	if path == "" {
		return nil, nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, &sandbox.Error{Code: rlm.CodeInvalidSchema, Op: "read the schema", Message: "it cannot be read", Err: err}
	}
	return b, nil
}

// engine makes what runs questions in this program: with the configured models and the tools of MCP servers, on a backend that is chosen when the first
// sandbox is needed. The caller must call done.
func (a *app) engine(ctx context.Context, w *watch, m *machine, models config.Models, r llm.Route, mcp []string) (e *rlm.Engine, done func(), err error) {
	if len(r.Sub) == 0 {
		r.Sub = models.Sub
	}
	set, err := models.Open()
	if err != nil {
		return nil, nil, err
	}
	servers, err := a.cfg.MCP.Open(mcp, thisBuild().Version, a.logger())
	if err != nil {
		set.Close()
		return nil, nil, err
	}
	done = func() {
		servers.Close()
		set.Close()
	}
	o := rlm.Options{PlainBelow: models.Small(), Limits: models.Limits}
	o.Cache, err = sharedCache(models)
	var routing *llm.Routing
	if err == nil {
		routing, err = set.Route(ctx, r)
	}
	if err == nil {
		o.Models = rlm.Routed(routing)
		o.Tools, err = servers.Tools(ctx)
	}
	if err == nil {
		e, err = a.engineOf(ctx, w, m, o)
	}
	if err != nil {
		done()
		return nil, nil, err
	}
	return e, done, nil
}

// sharedCache is what runs of this user share; nil: each has its own.
func sharedCache(m config.Models) (*rlm.Cache, error) {
	if m.Cache <= 0 {
		return nil, nil
	}
	data, err := xdg.Data()
	if err != nil {
		return nil, err
	}
	return rlm.OpenCache(filepath.Join(data, rlm.CacheDir), int64(m.Cache))
}

// engineOf makes an engine with the sandboxes that flags and configuration describe.
func (a *app) engineOf(ctx context.Context, w *watch, m *machine, o rlm.Options) (*rlm.Engine, error) {
	g, err := a.ground(ctx, w, m)
	if err != nil {
		return nil, err
	}
	return g.engine(ctx, o)
}

// ground is what engines of this program have in common: where code runs, and what judges it.
type ground struct {
	a       *app
	w       *watch
	backend sandbox.Backend
	spec    sandbox.Spec
	checker *gate.Checker
	swept   sync.Once
}

// ground makes it as flags and configuration say. It ends with the program.
func (a *app) ground(ctx context.Context, w *watch, m *machine) (*ground, error) {
	if err := m.configure(a); err != nil {
		return nil, err
	}
	spec, err := m.spec()
	if err != nil {
		return nil, err
	}
	req := m.requirements(a)
	req.Soon = true
	b, _, err := sandbox.Select(ctx, a.backends(ctx), req)
	if err != nil {
		return nil, err
	}
	checker, err := a.cfg.Gate.Open(nil)
	if err != nil {
		return nil, err
	}
	a.atEnd = append(a.atEnd, checker.Close)
	return &ground{a: a, w: w, backend: b, spec: spec, checker: checker}, nil
}

// engine makes one of them.
func (g *ground) engine(ctx context.Context, o rlm.Options) (*rlm.Engine, error) {
	o.Sandboxes, o.Spec, o.Logger, o.Durable, o.Gate = guarded{rlm.FromBackend(g.backend), g.w}, g.spec, g.a.logger(), true, g.checker
	if o.PlainBelow == 0 {
		o.PlainBelow = g.a.cfg.Models.Small()
	}
	e, err := rlm.New(o)
	if err == nil {
		g.swept.Do(func() { rlm.Sweep(ctx, g.backend, nil, e) })
	}
	return e, err
}

// guarded has the sandboxes of a run ended before the program is left at once.
type guarded struct {
	rlm.Sandboxes
	w *watch
}

func (g guarded) note(m rlm.Machine, err error) (rlm.Machine, error) {
	if s, ok := m.(*sandbox.Sandbox); ok && err == nil {
		g.w.guard(s)
	}
	return m, err
}

// Open implements rlm.Sandboxes.
func (g guarded) Open(ctx context.Context, spec sandbox.Spec) (rlm.Machine, error) {
	return g.note(g.Sandboxes.Open(ctx, spec))
}

// Attach implements rlm.Sandboxes.
func (g guarded) Attach(ctx context.Context, id string) (rlm.Machine, error) {
	return g.note(g.Sandboxes.Attach(ctx, id))
}

// Restore implements rlm.Sandboxes.
func (g guarded) Restore(ctx context.Context, snapshot string) (rlm.Machine, error) {
	return g.note(g.Sandboxes.Restore(ctx, snapshot))
}

// answerOut prints an answer.
func (a *app) answerOut(r *rlm.Result) {
	text := r.Answer
	if f, ok := a.stdout.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		text = harmless(text)
	}
	if text != "" {
		_, _ = io.WriteString(a.stdout, strings.TrimSuffix(text, "\n")+"\n") // there is nobody else to tell
	}
}

// verdictOf is the exit status of a run, and on stderr why there is no answer.
func (a *app) verdictOf(ctx context.Context, r *rlm.Result, err error) error {
	if r == nil {
		return cause(ctx, err)
	}
	if err == nil {
		return nil
	}
	if !a.json {
		what := "there is no answer"
		if r.Answer != "" {
			what = "no answer was handed in; above is the best there was"
		}
		if i, ok := errors.AsType[interrupted](context.Cause(ctx)); ok {
			a.say("stopped %v: %s", i, what)
		} else {
			a.tell(err)
			a.say("%s", what)
		}
		fmt.Fprintf(a.stderr, "  recluse runs resume %s goes on from here\n", r.Run)
	}
	if s, ok := signalled(context.Cause(ctx)); ok {
		return exit(s)
	}
	return exit(1)
}
