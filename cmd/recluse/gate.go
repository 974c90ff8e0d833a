package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/gate/rules"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// maxChecked bounds what gate check reads: no cell is larger.
const maxChecked = 32 << 20

func (a *app) gateCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "gate",
		Short: "Judge code, test rules, answer the gate's questions",
		Long: `The gate looks at code before it runs, wherever it comes from: this command line, HTTP, MCP, the library or a model's run. It
passes it, warns, asks a person, or refuses. It is a seat belt; the sandbox is the wall.`,
		Example: `  recluse gate check script.py
  recluse gate rules > my-rules.yaml && recluse gate test my-rules.yaml
  recluse gate list
  recluse gate grant ID`,
	}
	c.AddCommand(
		a.gateCheckCommand(), a.gateTestCommand(), a.gateRulesCommand(), a.gateListCommand(),
		a.gateAnswerCommand("grant", "Let exactly this code run once, in its session", true),
		a.gateAnswerCommand("refuse", "Refuse it, and tell its writer why", false),
	)
	return c
}

type gateCheckOptions struct{ language, mode, role, rules string }

func (a *app) gateCheckCommand() *cobra.Command {
	var o gateCheckOptions
	c := &cobra.Command{
		Use:   "check FILE...",
		Short: "Judge files without running them",
		Long: `Judge files as the gate would before it lets them run. Nothing is run, and nobody is asked.

The language is told by the name (.py, .sh, .bash) or the first line. Exit status: 0 if all of it would run, 1 if something would
not, 125 if it could not be judged.`,
		Example: `  recluse gate check script.py deploy.sh
  echo 'x=/; rm -rf $x' | recluse gate check --language bash --mode block -
  recluse gate check --rules my-rules.yaml --json script.py`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return a.gateCheck(c.Context(), &o, args) },
	}
	f := c.Flags()
	f.StringVar(&o.language, "language", "", "`python` or bash, where the file does not tell")
	f.StringVar(&o.mode, "mode", "", "judge as in a session with this gate: off, warn or block (default as configured)")
	f.StringVar(&o.role, "role", "", "judge by the thesaurus of this `role`")
	f.StringVar(&o.rules, "rules", "", "judge by the rules of this `file`")
	completeWords(c, "language", string(gate.Python), string(gate.Bash))
	completeEnum[v1.GateRequest](c, "mode", "Rules")
	return c
}

// checked is the judgement of one file.
type checked struct {
	File string `json:"file"`
	gate.Decision
}

func (a *app) gateCheck(ctx context.Context, o *gateCheckOptions, files []string) error {
	if _, err := gate.ParseMode(cmp.Or(o.mode, string(gate.ModeOff))); err != nil {
		return err
	}
	cfg, err := a.config()
	if err != nil {
		return err
	}
	g := cfg.Gate
	if o.rules != "" {
		g.RulesFile = o.rules
	}
	checker, err := g.Open(nil)
	if err != nil {
		return err
	}
	defer checker.Close()
	if err := gate.CheckRole(checker, o.role); err != nil {
		return err
	}
	all, refused := []checked{}, false
	for _, file := range files {
		req, err := a.codeOf(file, o.language)
		if err != nil {
			return err
		}
		req.Role, req.Rules, req.Graph, req.Attempt = o.role, gate.Mode(o.mode), gate.Mode(o.mode), 1
		d, err := checker.Judge(ctx, req)
		if err != nil {
			return err
		}
		refused = refused || !d.Action.Runs()
		all = append(all, checked{file, d})
		if !a.json {
			printDecision(a.stdout, file, &d)
		}
	}
	if a.json {
		if err := console.WriteJSON(a.stdout, all); err != nil {
			return err
		}
	}
	if refused {
		return exit(1)
	}
	return nil
}

// codeOf reads a file; - is the input.
func (a *app) codeOf(file, language string) (gate.Request, error) {
	var in io.Reader = a.stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return gate.Request{}, noCode(err)
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxChecked+1))
	if err != nil {
		return gate.Request{}, noCode(err)
	}
	if len(b) > maxChecked {
		return gate.Request{}, &v1.Error{Code: v1.CodeTooLarge, Op: "judge " + file, Message: "it is larger than any code that would be run"}
	}
	req := gate.Request{Language: gate.Language(language), Code: string(b)}
	if language == "" {
		req.Language = languageOf(file, req.Code)
	}
	if req.Language != gate.Python && req.Language != gate.Bash {
		return req, usage("%s: the language cannot be told; say --language python or bash", file)
	}
	return req, nil
}

func noCode(err error) error {
	return &v1.Error{Code: v1.CodeInvalidRequest, Op: "judge code", Message: "it cannot be read", Err: err}
}

// languageOf tells the language by name or first line, or gives "".
func languageOf(file, code string) gate.Language {
	switch strings.ToLower(filepath.Ext(file)) {
	case ".py":
		return gate.Python
	case ".sh", ".bash":
		return gate.Bash
	}
	first, _, _ := strings.Cut(code, "\n")
	if !strings.HasPrefix(first, "#!") {
		return ""
	}
	switch {
	case strings.Contains(first, "python"):
		return gate.Python
	case strings.HasSuffix(strings.Fields(first + " x")[0], "sh"), strings.Contains(first, "bash"):
		return gate.Bash
	}
	return ""
}

// printDecision tells a judgement as compilers tell mistakes.
func printDecision(w io.Writer, file string, d *gate.Decision) {
	for _, f := range d.Findings {
		word := string(f.Severity)
		if f.Severity == v1.GateAllow {
			word = "note"
		}
		if f.Undecidable {
			word += ", undecidable"
		}
		fmt.Fprintf(w, "%s:%d:%d: %s: %s (%s)\n", file, max(1, f.Line), max(1, f.Column), word, console.OneLine(f.Message), f.Rule)
		if f.Fix != "" && f.Severity != v1.GateAllow {
			fmt.Fprintf(w, "  instead: %s\n", console.OneLine(f.Fix))
		}
	}
	for _, s := range d.Suggestions {
		fmt.Fprintf(w, "  %q is not a known term; near it: %s\n", s.Word, strings.Join(s.Near, ", "))
	}
	if len(d.ConceptsMatched) > 0 {
		fmt.Fprintf(w, "  concepts: %s\n", strings.Join(d.ConceptsMatched, ", "))
	}
	why := ""
	if d.Action == v1.GateWarn && slices.ContainsFunc(d.Findings, func(f gate.Finding) bool { return f.Severity == v1.GateDeny || f.Severity == v1.GateAsk }) {
		why = ": it would run, because the gate only warns (--mode block judges as one that refuses)"
	}
	fmt.Fprintf(w, "%s: %s%s\n", file, d.Action, why)
}

func (a *app) gateTestCommand() *cobra.Command {
	return &cobra.Command{
		Use: "test RULES", Short: "Run the tests that stand beside rules", Args: cobra.ExactArgs(1),
		Example: "  recluse gate test my-rules.yaml",
		RunE: func(c *cobra.Command, args []string) error {
			set, err := rules.Load(args[0])
			if err != nil {
				return err
			}
			n, err := set.RunTests(c.Context())
			if err != nil {
				return err
			}
			rules := len(set.Names())
			return a.result(map[string]int{"rules": rules, "tests": n}, "%s of %s pass\n", console.Plural(n, "test", "tests"), console.Plural(rules, "rule", "rules"))
		},
	}
}

func (a *app) gateRulesCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rules", Short: "Print the rules that come along, as a beginning for one's own", Args: cobra.NoArgs,
		Example: "  recluse gate rules > my-rules.yaml",
		RunE: func(*cobra.Command, []string) error {
			_, err := a.stdout.Write(rules.DefaultFile())
			return err
		},
	}
}

func (a *app) gateListCommand() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the gate's questions to you", Args: cobra.NoArgs,
		Example: "  recluse gate list\n  recluse gate list --all     # answered and expired ones, too",
		RunE: a.served(func(ctx context.Context, c *client.Client, _ []string) error {
			state := v1.ApprovalPending
			if all {
				state = ""
			}
			return a.gateList(ctx, c, state)
		}),
	}
	c.Flags().BoolVar(&all, "all", false, "also those that are answered or have expired")
	return c
}

func (a *app) gateList(ctx context.Context, c *client.Client, state gate.ApprovalState) error {
	questions, err := c.Approvals(ctx, state)
	if err != nil {
		return err
	}
	if a.json {
		return console.WriteJSON(a.stdout, questions)
	}
	if len(questions) == 0 {
		a.say("nothing to answer")
		return nil
	}
	for _, q := range questions {
		fmt.Fprintf(a.stdout, "%s  %s  session %s, %s ago, %s\n", q.ID, q.State, console.OneLine(q.Request.Session), console.Ago(q.Created), q.Request.Language)
		for line := range strings.Lines(console.Clip(q.Request.Text(), 2000)) {
			fmt.Fprintf(a.stdout, "    %s\n", console.OneLine(strings.TrimSuffix(line, "\n")))
		}
		for _, f := range q.Decision.Findings {
			fmt.Fprintf(a.stdout, "  %s\n", console.OneLine(f.String()))
		}
	}
	return nil
}

func (a *app) gateAnswerCommand(verb, short string, grant bool) *cobra.Command {
	var note string
	c := &cobra.Command{
		Use: verb + " ID", Short: short, Args: cobra.ExactArgs(1), Example: "  recluse gate list\n  recluse gate " + verb + " ID",
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			q, err := c.Resolve(ctx, args[0], client.Answer{Grant: grant, Note: note})
			if err != nil {
				return err
			}
			if !a.json {
				a.say("%s", q.State)
			}
			return a.result(q, "")
		}),
	}
	c.Flags().StringVar(&note, "note", "", "`text` that the code's writer is told")
	return c
}

// judge begins to judge code that runs in a sandbox of this call's own, while the sandbox is made; wait returns what the gate says. Sessions
// are judged by their server.
func (a *app) judge(ctx context.Context, req gate.Request) (wait func() (warning string, err error), err error) {
	cfg, err := a.config()
	if err != nil {
		return nil, err
	}
	wait = sync.OnceValues(func() (string, error) {
		checker, err := cfg.Gate.Open(nil)
		if err != nil {
			return "", err
		}
		defer checker.Close()
		if err := gate.CheckRole(checker, req.Role); err != nil {
			return "", err
		}
		req.Attempt = 1
		d, err := gate.Enforce(ctx, checker, req)
		if d.Action != v1.GateWarn {
			return "", err
		}
		return d.Reason, err
	})
	go wait() //nolint:errcheck // who waits is told
	return wait, nil
}

// warned tells what the gate had to say about code that ran all the same.
func (a *app) warned(v *sandbox.Verdict, warning string) {
	if v == nil {
		return
	}
	if warning != "" {
		if v.Metadata == nil {
			v.Metadata = map[string]string{}
		}
		v.Metadata[session.MetaGate] = warning
	}
	text := v.Metadata[session.MetaGate]
	if text == "" || a.json { // there it is part of the verdict
		return
	}
	if !a.verbose {
		line, more := gate.Headline(text)
		if text = console.OneLine(line); more > 1 {
			text += " (-v explains)"
		}
	}
	a.say("gate: %s", text)
}
