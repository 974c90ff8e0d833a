package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/runview"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/rlm/mcptools"
	"github.com/recluse-dev/recluse/session"
)

// askOptions are the flags of recluse ask.
type askOptions struct {
	runFlags
	contexts []string
	schema   string
	session  string
	samples  int
	gate     string
	role     string
	prompt   string
	show     bool
}

// runFlags are the flags of every verb that starts or continues a run.
type runFlags struct {
	sandboxFlags
	model  string
	sub    []string
	limits v1.RunLimits
	mcp    []string
	quiet  bool
}

func (o *runFlags) register(f *pflag.FlagSet) {
	f.StringVar(&o.model, "model", "", "model of the run, as `provider/model`; a list separated by commas adds "+
		"fallbacks (default as configured, else the first model found)")
	f.StringArrayVar(&o.sub, "sub-model", nil,
		"model of sub-calls, as `provider/model`; repeat for deeper levels (default the model of the run)")
	for _, l := range o.limits.Fields() {
		f.Var(l, l.Flag, l.Doc)
		setGroup(f, groupRun, l.Flag)
	}
	f.StringArrayVar(&o.mcp, "mcp", nil,
		"MCP server whose tools the code can call, as `NAME=COMMAND` or NAME=URL (repeatable)")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print only the answer")
	o.sandboxFlags.register(f)
}

// host returns the flags that concern the server's machine; nil if none is given.
func (o *runFlags) host(a *app) (*client.RunHost, error) {
	for _, text := range o.mcp {
		s, err := mcptools.Parse(text)
		if err != nil {
			return nil, err
		}
		m := client.MCPServer{Name: s.Name, Command: s.Command, URL: s.URL}
		if len(m.Command) > 0 { // the server has another working directory and another PATH
			if m.Dir, err = os.Getwd(); err != nil {
				return nil, err
			}
			if path, err := exec.LookPath(m.Command[0]); err == nil && filepath.IsAbs(path) {
				m.Command[0] = path
			}
		}
		o.Host.MCP = append(o.Host.MCP, m)
	}
	return o.sandboxFlags.host(a)
}

func (a *app) askCommand() *cobra.Command {
	var o askOptions
	c := &cobra.Command{
		Use:   "ask QUESTION",
		Short: "Answer a question about files of any size",
		Long: `Answer a question about files of any size.

The context becomes a Python variable in a sandbox. A model writes code there, turn by
turn: the code searches the context and calls models with parts of it. One budget limits
all calls together. A small context is sent to the model as it is.

The answer is printed on stdout. Progress is printed on stderr: a live tree on a terminal,
else plain lines. With --json, stdout has the events of the run, one JSON object a line;
the last one holds the result.

Ctrl-C stops the run and prints the best answer so far. A second Ctrl-C exits at once. The
run is kept; see recluse runs.

Exit status:
  0    there is an answer
  1    the run ended without an answer; the best one so far is printed
  125  the run could not start
  130  after Ctrl-C`,
		Example: `  recluse ask "Which three people are mentioned most?" --context big.txt
  recluse ask "What changed?" --context old/ --context new/ \
    --model anthropic/claude-sonnet-5-5 --sub-model ollama/qwen3:8b
  recluse ask "List all invoices" --context mails.json \
    --schema invoices.schema.json --max-cost 2 --max-time 10m --json
  recluse ask "How many customers complained?" --context mails/ --samples 5
  recluse ask "What broke?" --context logs/ --prompt compact --show-prompt
  recluse ask "Which of these tickets are still open?" --context mails/ \
    --mcp "tracker=tracker-mcp --stdio" --mcp wiki=https://wiki.example/mcp
  journalctl -b | recluse ask "Why did it not start?" --context -`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return a.ask(c.Context(), &o, args[0]) },
	}
	f := c.Flags()
	f.StringArrayVar(&o.contexts, "context", nil,
		"`file` or directory that the question is about; - reads stdin (repeatable)")
	f.StringVar(&o.schema, "schema", "", "`file` with a JSON Schema for the answer")
	f.StringVar(&o.session, "session", "",
		"`name` of a session to run in; its Python variables stay for the next question")
	f.IntVar(&o.samples, "samples", 1, fmt.Sprintf("`number` of candidates that answer independently, each with an "+
		"equal part of the budget; the answer on which most agree is printed; at most %d", v1.MaxSamples))
	f.StringVar(&o.prompt, "prompt", "", "prompt `profile` of the run ("+strings.Join(rlm.PromptProfiles(), ", ")+
		"), or a file with a template for its system prompt (default as configured)")
	f.BoolVar(&o.show, "show-prompt", false, "print the first messages to the model without calling it, and exit")
	f.StringVar(&o.gate, "gate", "", "gate mode for the model's code (default as configured)")
	f.StringVar(&o.role, "role", "", "`role` whose thesaurus the gate uses")
	f.Var(valueOf(&o.Host.PlainBelow), "plain-below",
		"size in `tokens` below which a context is sent to the model as it is; 0: never (default as configured, 16384)")
	f.Var(valueOf(&o.Host.CacheBytes), "cache",
		"`size` of the cache on disk for replies to sub-calls, which later runs use; 0: no cache (default as "+
			"configured, no cache)")
	o.register(f)
	a.completeSession(c, "session")
	completeEnum[v1.GateRequest](c, "gate", "Rules")
	return c
}

func (a *app) ask(ctx context.Context, o *askOptions, query string) error {
	if strings.TrimSpace(query) == "" {
		return usage("the question is empty")
	}
	opts := client.RunOptions{
		Query:     query,
		Model:     o.model,
		SubModels: o.sub,
		Limits:    o.limits,
		Gate:      o.gate,
		Role:      o.role,
		Session:   o.session,
	}
	if o.samples < 1 || o.samples > v1.MaxSamples {
		return usage("--samples %d: want 1 to %d", o.samples, v1.MaxSamples)
	}
	if o.samples > 1 {
		opts.Samples = o.samples
	}
	var err error
	if opts.Schema, err = readSchema(o.schema); err != nil {
		return err
	}
	if err := o.setPrompt(&opts); err != nil {
		return err
	}
	if opts.Host, err = o.host(a); err != nil {
		return err
	}
	if o.show {
		return a.showPrompt(ctx, o, opts)
	}
	if o.session != "" {
		if err := o.inSession(opts.Host); err != nil {
			return err
		}
	}
	return a.inServer(ctx, o.quiet, func(ctx context.Context, c *client.Client) (*rlm.Info, error) {
		if o.session != "" {
			if _, _, err := c.Open(ctx, o.session, a.withLimits(session.OpenOptions{})); err != nil {
				return nil, err
			}
		}
		for _, path := range o.contexts {
			x, remove, err := a.contextOf(path)
			if err != nil {
				return nil, err
			}
			defer remove()
			opts.Contexts = append(opts.Contexts, x)
		}
		return c.StartRun(ctx, opts)
	})
}

// inSession refuses flags that conflict with --session, because the session or the configuration of its server decides.
func (o *askOptions) inSession(h *client.RunHost) error {
	switch {
	case o.gate != "" || o.role != "":
		return usage("--gate and --role: the session has its own; set them with recluse session open")
	case o.samples > 1:
		return usage("--samples: a run in a session has one candidate, which changes the variables of the session")
	case len(o.mcp) > 0:
		return usage("--mcp: a run in a session uses the MCP servers of the server's configuration (mcp.servers)")
	case o.Host.PlainBelow != nil || o.Host.CacheBytes != nil:
		return usage(
			"--plain-below, --cache: a run in a session uses the server's configuration (models.plain_below, models.cache)",
		)
	case h != nil:
		return usage(
			"--session: flags of the sandbox cannot be given for a run in a session; set them with recluse session open",
		)
	}
	return nil
}

// contextOf returns a model context: the path of the file for the user's own server, the text for a remote server. The
// caller must call remove once the run has started.
func (a *app) contextOf(path string) (x client.RunContext, remove func(), err error) {
	fail := func(err error) (client.RunContext, func(), error) {
		remove()
		return x, nil, &v1.Error{
			Code:    v1.CodeContextMissing,
			Op:      "read the context",
			Message: "cannot read the file or directory",
			Err:     err,
		}
	}
	remove = func() {}
	if path == "-" {
		dir, err := os.MkdirTemp("", "recluse-stdin-")
		if err != nil {
			return fail(err)
		}
		remove = func() { _ = os.RemoveAll(dir) } // the directory is private
		x.Name, path = "stdin", filepath.Join(dir, "stdin")
		if err := spool(path, a.stdin); err != nil {
			return fail(err)
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		return fail(err)
	}
	if a.cfg.Client.URL == "" {
		if x.Path, err = filepath.Abs(path); err != nil { // the server has another working directory
			return fail(err)
		}
		return x, remove, nil
	}
	if info.IsDir() {
		return x, nil, usage("--context %s: is a directory; only files can be sent to a remote server", path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return fail(err)
	}
	x.Name, x.Text = cmp.Or(x.Name, filepath.Base(path)), new(string(b))
	return x, remove, nil
}

// spool writes the input to a file in a private directory. The file is readable by all users, so that the run can link
// to it.
func spool(file string, in io.Reader) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, in)
	return errors.Join(err, f.Close())
}

func readSchema(path string) (json.RawMessage, error) {
	if path == "" {
		return nil, nil
	}
	b, err := os.ReadFile(path)
	if err == nil && !json.Valid(b) {
		err = errors.New("invalid JSON")
	}
	if err != nil {
		return nil, &v1.Error{Code: v1.CodeInvalidSchema, Op: "read the schema", Message: "invalid schema", Err: err}
	}
	return b, nil
}

// printAnswer prints an answer.
func (a *app) printAnswer(r *rlm.Result) {
	text := r.Answer
	if f, ok := a.stdout.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		text = runview.StripControl(text)
	}
	if text != "" {
		_, _ = io.WriteString(a.stdout, strings.TrimSuffix(text, "\n")+"\n") // the error has nowhere else to go
	}
}

// verdictOf returns the exit status of a run as an error, and prints on stderr why there is no answer.
func (a *app) verdictOf(ctx context.Context, r *rlm.Result, err error) error {
	if r == nil {
		return cause(ctx, err)
	}
	if err == nil {
		return nil
	}
	if !a.json {
		what := "no answer"
		if r.Answer != "" {
			what = "no final answer; the text above is the best one so far"
		}
		if i, ok := errors.AsType[interrupted](context.Cause(ctx)); ok {
			a.notice("stopped %v: %s", i, what)
		} else {
			a.printError(err)
			a.notice("%s", what)
		}
		fmt.Fprintf(a.stderr, "  to continue: recluse runs resume %s\n", r.Run)
	}
	if s, ok := signalled(context.Cause(ctx)); ok {
		return exit(s)
	}
	return exit(1)
}
