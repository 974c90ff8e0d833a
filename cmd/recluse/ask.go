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

// askOptions is what the user says about a question.
type askOptions struct {
	runFlags
	contexts []string
	schema   string
	session  string
	gate     string
	role     string
}

// runFlags are the flags of everything that lets models work.
type runFlags struct {
	sandboxFlags
	model  string
	sub    []string
	limits v1.RunLimits
	mcp    []string
	quiet  bool
}

func (o *runFlags) register(f *pflag.FlagSet) {
	f.StringVar(&o.model, "model", "", "`provider/model` that works on the question, several with commas: the next when one fails (default as configured, or one that is found)")
	f.StringArrayVar(&o.sub, "sub-model", nil, "`provider/model` for the calls it makes; repeated for deeper ones (default the same)")
	for _, l := range o.limits.Fields() {
		f.Var(l, l.Flag, l.Doc)
	}
	f.StringArrayVar(&o.mcp, "mcp", nil, "`NAME=COMMAND` or NAME=URL of an MCP server whose tools the code can call (repeatable)")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print nothing but the answer")
	o.sandboxFlags.register(f)
}

// host returns what the flags ask of the server's machine; nil: nothing.
func (o *runFlags) host(a *app) (*client.RunHost, error) {
	for _, text := range o.mcp {
		s, err := mcptools.Parse(text)
		if err != nil {
			return nil, err
		}
		m := client.MCPServer{Name: s.Name, Command: s.Command, URL: s.URL}
		if len(m.Command) > 0 { // the server works elsewhere, and has another PATH
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
		Short: "Answer a question over files of any size",
		Long: `Answer a question over texts that are far larger than a model's window.

The context becomes a variable in a sandbox, and a model writes code there, turn by turn: it looks, filters, and asks models about
the pieces it has chosen. One budget holds for everything together. A small context is simply given to the model.

The answer is printed on stdout and everything else on stderr: a live tree on a terminal, else plain lines. With --json stdout is
the run's events, one JSON object a line, the last of them with the result. Ctrl-C stops the run and prints what there is of an
answer; a second one leaves at once. The run is kept: see recluse runs.

Exit status: 0 with an answer, 1 when the run ended without one (what there is is printed), 130 after Ctrl-C, 125 when it could not begin.`,
		Example: `  recluse ask "Which three people are mentioned most?" --context big.txt
  recluse ask "What changed?" --context old/ --context new/ \
    --model anthropic/claude-sonnet-5-5 --sub-model ollama/qwen3:8b
  recluse ask "List all invoices" --context mails.json \
    --schema invoices.schema.json --max-cost 2 --max-time 10m --json
  recluse ask "Which of these tickets are still open?" --context mails/ \
    --mcp "tracker=tracker-mcp --stdio" --mcp wiki=https://wiki.example/mcp
  journalctl -b | recluse ask "Why did it not start?" --context -`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return a.ask(c.Context(), &o, args[0]) },
	}
	f := c.Flags()
	f.StringArrayVar(&o.contexts, "context", nil, "`file` or directory that the question is about; - is the input (repeatable)")
	f.StringVar(&o.schema, "schema", "", "`file` with the JSON Schema that the answer must meet")
	f.StringVar(&o.session, "session", "", "work in the session of this `name`, whose variables stay for the next question")
	f.StringVar(&o.gate, "gate", "", "judge the model's code before it runs: off, warn or block (default as configured)")
	f.StringVar(&o.role, "role", "", "judge it by the thesaurus of this `role`")
	f.Var(valueOf(&o.Host.PlainBelow), "plain-below", "`tokens` of a context below which the model is simply given it; 0: never (default as configured, 16384)")
	f.Var(valueOf(&o.Host.CacheBytes), "cache", "keep this `size` of replies to calls from code on disk, and use those of earlier runs; 0: none (default as configured, none)")
	o.register(f)
	a.completeSession(c, "session")
	completeEnum[v1.GateRequest](c, "gate", "Rules")
	return c
}

func (a *app) ask(ctx context.Context, o *askOptions, query string) error {
	if strings.TrimSpace(query) == "" {
		return usage("the question is empty")
	}
	opts := client.RunOptions{Query: query, Model: o.model, SubModels: o.sub, Limits: o.limits, Gate: o.gate, Role: o.role, Session: o.session}
	var err error
	if opts.Schema, err = readSchema(o.schema); err != nil {
		return err
	}
	if opts.Host, err = o.host(a); err != nil {
		return err
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

// inSession refuses what the session or the configuration of its server says.
func (o *askOptions) inSession(h *client.RunHost) error {
	switch {
	case o.gate != "" || o.role != "":
		return usage("--gate and --role: they are those of the session; say them when it is opened, with recluse session open")
	case len(o.mcp) > 0:
		return usage("--mcp: the server answers in a session, with the MCP servers of its own configuration (mcp.servers)")
	case o.Host.PlainBelow != nil || o.Host.CacheBytes != nil:
		return usage("--plain-below, --cache: the server answers in a session, as its own configuration says (models.plain_below, models.cache)")
	case h != nil:
		return usage("--session: the sandbox is that of the session; make it with recluse session open")
	}
	return nil
}

// contextOf names a file for the user's own server; another one is sent its text. The caller must call remove once the run has begun.
func (a *app) contextOf(path string) (x client.RunContext, remove func(), err error) {
	fail := func(err error) (client.RunContext, func(), error) {
		remove()
		return x, nil, &v1.Error{Code: v1.CodeContextMissing, Op: "read the context", Message: "it cannot be read", Err: err}
	}
	remove = func() {}
	if path == "-" {
		dir, err := os.MkdirTemp("", "recluse-stdin-")
		if err != nil {
			return fail(err)
		}
		remove = func() { _ = os.RemoveAll(dir) } // nobody else is in it
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
		if x.Path, err = filepath.Abs(path); err != nil { // the server works elsewhere
			return fail(err)
		}
		return x, remove, nil
	}
	if info.IsDir() {
		return x, nil, usage("--context %s: a directory cannot be sent to another machine", path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return fail(err)
	}
	x.Name, x.Text = cmp.Or(x.Name, filepath.Base(path)), new(string(b))
	return x, remove, nil
}

// spool writes the input to a file in a private directory. Everybody may read the file, so that the run can link to it.
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
		err = errors.New("it is not JSON")
	}
	if err != nil {
		return nil, &v1.Error{Code: v1.CodeInvalidSchema, Op: "read the schema", Message: "the schema for answers is not valid", Err: err}
	}
	return b, nil
}

// answerOut prints an answer.
func (a *app) answerOut(r *rlm.Result) {
	text := r.Answer
	if f, ok := a.stdout.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		text = runview.Harmless(text)
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
