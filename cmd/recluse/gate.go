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

// maxChecked is the largest file that gate check reads: no cell is larger.
const maxChecked = 32 << 20

func (a *app) gateCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "gate",
		Short: "Judge code, test rules, answer approvals",
		Long: `Judge code, test rules, answer approvals.

The gate judges code before it runs, whether it comes from this command line, HTTP, MCP,
the library or a run. It allows the code, warns, asks a person, or denies it. The gate
prevents accidents; only the sandbox is a security boundary.`,
		Example: `  recluse gate check script.py
  recluse gate rules > my-rules.yaml && recluse gate test my-rules.yaml
  recluse gate list
  recluse gate grant ID`,
	}
	c.AddCommand(
		a.gateCheckCommand(), a.gateTestCommand(), a.gateRulesCommand(), a.gateListCommand(),
		a.gateAnswerCommand("grant", "Approve code to run once, or a connection, in its session", true),
		a.gateAnswerCommand("refuse", "Refuse code or a connection; --note is the reason", false),
	)
	return c
}

type gateCheckOptions struct{ language, mode, role, rules string }

func (a *app) gateCheckCommand() *cobra.Command {
	var o gateCheckOptions
	c := &cobra.Command{
		Use:   "check FILE...",
		Short: "Judge files without running them",
		Long: `Judge files without running them.

The file name (.py, .sh, .bash) or the first line of a file decides its language. No
approval is requested. The exit status is 0 if all files would run, 1 if one would not, and
125 if one could not be judged.`,
		Example: `  recluse gate check script.py deploy.sh
  echo 'x=/; rm -rf $x' | recluse gate check --language bash --mode block -
  recluse gate check --rules my-rules.yaml --json script.py`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return a.gateCheck(c.Context(), &o, args) },
	}
	f := c.Flags()
	f.StringVar(&o.language, "language", "", "language, if the file name and the first line do not show it")
	f.StringVar(&o.mode, "mode", "", "gate mode (default as configured)")
	f.StringVar(&o.role, "role", "", "`role` whose thesaurus is used")
	f.StringVar(&o.rules, "rules", "", "`file` with the rules to use")
	completeWords(c, "language", string(gate.Python), string(gate.Bash))
	completeEnum[v1.GateRequest](c, "mode", "Rules")
	return c
}

// checked is the decision about one file.
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

// codeOf reads the code of a file; - is stdin.
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
		return gate.Request{}, &v1.Error{
			Code:    v1.CodeTooLarge,
			Op:      "judge " + file,
			Message: fmt.Sprintf("larger than %d bytes, the most that can be run", maxChecked),
		}
	}
	req := gate.Request{Language: gate.Language(language), Code: string(b)}
	if language == "" {
		req.Language = languageOf(file, req.Code)
	}
	if req.Language != gate.Python && req.Language != gate.Bash {
		return req, usage("%s: unknown language; give --language python or --language bash", file)
	}
	return req, nil
}

func noCode(err error) error {
	return &v1.Error{Code: v1.CodeInvalidRequest, Op: "judge code", Message: "cannot read the file", Err: err}
}

// languageOf returns the language of a file by its name or first line, or "".
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

// printDecision prints a decision in the format of compiler errors.
func printDecision(w io.Writer, file string, d *gate.Decision) {
	for _, f := range d.Findings {
		word := string(f.Severity)
		if f.Severity == v1.GateAllow {
			word = "note"
		}
		if f.Undecidable {
			word += ", undecidable"
		}
		fmt.Fprintf(
			w,
			"%s:%d:%d: %s: %s (%s)\n",
			file,
			max(1, f.Line),
			max(1, f.Column),
			word,
			console.OneLine(f.Message),
			f.Rule,
		)
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
	if d.Action == v1.GateWarn &&
		slices.ContainsFunc(
			d.Findings,
			func(f gate.Finding) bool { return f.Severity == v1.GateDeny || f.Severity == v1.GateAsk },
		) {
		why = ": it would run, because the gate only warns (--mode block would refuse it)"
	}
	fmt.Fprintf(w, "%s: %s%s\n", file, d.Action, why)
}

func (a *app) gateTestCommand() *cobra.Command {
	return &cobra.Command{
		Use: "test RULES", Short: "Run the tests in a file of rules", Args: cobra.ExactArgs(1),
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
			return a.result(
				map[string]int{"rules": rules, "tests": n},
				"%s of %s pass\n",
				console.Plural(n, "test", "tests"),
				console.Plural(rules, "rule", "rules"),
			)
		},
	}
}

func (a *app) gateRulesCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rules", Short: "Print the built-in rules, to start your own from", Args: cobra.NoArgs,
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
		Use: "list", Aliases: []string{"ls"}, Short: "List code and connections that wait for your approval", Args: cobra.NoArgs,
		Example: "  recluse gate list\n  recluse gate list --all     # also answered and expired ones",
		RunE: a.served(func(ctx context.Context, c *client.Client, _ []string) error {
			state := v1.ApprovalPending
			if all {
				state = ""
			}
			return a.gateList(ctx, c, state)
		}),
	}
	c.Flags().BoolVar(&all, "all", false, "include answered and expired approvals")
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
		a.notice("nothing waits for approval")
		return nil
	}
	for _, q := range questions {
		fmt.Fprintf(
			a.stdout,
			"%s  %s  session %s, %s ago, %s\n",
			q.ID,
			q.State,
			console.OneLine(q.Request.Session),
			console.Ago(q.Created),
			cmp.Or(string(q.Request.Language), string(q.Kind)),
		)
		for line := range strings.Lines(console.Clip(q.Text(), 2000)) {
			fmt.Fprintf(a.stdout, "    %s\n", console.OneLine(strings.TrimSuffix(line, "\n")))
		}
		for _, f := range q.Decision.Findings {
			fmt.Fprintf(a.stdout, "  %s\n", console.OneLine(f.String()))
		}
		if q.Connect != nil {
			fmt.Fprintf(a.stdout, "  rule: %s\n", console.OneLine(q.Connect.Rule))
		}
	}
	return nil
}

func (a *app) gateAnswerCommand(verb, short string, grant bool) *cobra.Command {
	var note string
	c := &cobra.Command{
		Use:     verb + " ID",
		Short:   short,
		Args:    cobra.ExactArgs(1),
		Example: "  recluse gate list\n  recluse gate " + verb + " ID",
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			q, err := c.Resolve(ctx, args[0], client.Answer{Grant: grant, Note: note})
			if err != nil {
				return err
			}
			if !a.json {
				a.notice("%s", q.State)
			}
			return a.result(q, "")
		}),
	}
	c.Flags().StringVar(&note, "note", "", "`text` that the author of the code gets")
	return c
}

// judge starts to judge code for a new sandbox, while that sandbox is made. wait waits for the decision and returns its
// warning or error. Code in sessions is judged by their server.
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
	go wait() //nolint:errcheck // wait returns the error again
	return wait, nil
}

// noticeGate prints the warning of the gate about code that ran. With --json it is added to the verdict instead.
func (a *app) noticeGate(v *sandbox.Verdict, warning string) {
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
	if text == "" || a.json { // with --json it is in the verdict
		return
	}
	if !a.verbose {
		line, more := gate.Headline(text)
		if text = console.OneLine(line); more > 1 {
			text += " (details: -v)"
		}
	}
	a.notice("gate: %s", text)
}
