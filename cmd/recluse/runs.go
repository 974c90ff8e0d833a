package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/runview"
	"github.com/recluse-dev/recluse/internal/xdg"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox"
)

func (a *app) runsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "runs",
		Short: "Look at runs of recluse ask, and go on with them",
		Long: `Look at the runs of recluse ask, and go on with them. A run is named by its id, by the beginning or end of one, or by last.

A run whose program was killed can be resumed: its sandbox is taken over if it is still there, else restored or made anew, and only calls
that were under way are paid again.`,
		Example: `  recluse runs list
  recluse runs show last
  recluse runs resume 20260915-101112-0a1b2c3d --max-time 10m
  recluse runs fork last --at 5
  recluse runs export last --format rlm > run.jsonl`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(a.runsListCommand(), a.runsShowCommand(), a.runsResumeCommand(), a.runsReplayCommand(), a.runsForkCommand(), a.runsExportCommand(), a.runsDeleteCommand())
	return c
}

// reader is an engine that only reads what is kept.
func (a *app) reader() (*rlm.Engine, error) {
	return rlm.New(rlm.Options{
		Models: func(int, string) (llm.Model, error) { return nil, rlm.NoModel() }, Sandboxes: rlm.FromBackend(nil), Logger: a.logger(),
	})
}

// runID finds the run that somebody means.
func runID(word string) (string, error) {
	data, err := xdg.Data()
	if err != nil {
		return "", err
	}
	entries, err := os.ReadDir(filepath.Join(data, "runs"))
	if err != nil && !os.IsNotExist(err) {
		return "", &sandbox.Error{Code: sandbox.CodeInternal, Op: "find run", Err: err}
	}
	if word == "last" {
		sortByAge(entries)
	}
	var found []string
	for _, e := range entries {
		name := e.Name()
		if name == word {
			return name, nil
		}
		if word == "last" || word != "" && (strings.HasPrefix(name, word) || strings.HasSuffix(name, word)) {
			found = append(found, name)
		}
	}
	if len(found) == 0 {
		return "", &sandbox.Error{Code: rlm.CodeRunNotFound, Op: "find run", Message: fmt.Sprintf("there is no run %q", word), Remedy: "recluse runs list"}
	}
	if len(found) > 1 && word != "last" {
		return "", &sandbox.Error{Code: sandbox.CodeInvalidRequest, Op: "find run", Message: fmt.Sprintf("%q is %d runs", word, len(found)), Remedy: "write more of the id"}
	}
	return found[len(found)-1], nil
}

// idTime is the length of the time that an id begins with, in seconds.
const idTime = len("20060102-150405")

// sortByAge puts the newest last, also among those that began in the same second.
func sortByAge(entries []os.DirEntry) {
	made := func(e os.DirEntry) int64 {
		info, err := e.Info()
		if err != nil {
			return 0 // it has just been deleted
		}
		return info.ModTime().UnixNano()
	}
	began := func(e os.DirEntry) string { return e.Name()[:min(idTime, len(e.Name()))] }
	slices.SortStableFunc(entries, func(a, b os.DirEntry) int {
		return cmp.Or(cmp.Compare(began(a), began(b)), cmp.Compare(made(a), made(b)))
	})
}

// runFirst completes the first argument.
func runFirst(_ *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	data, err := xdg.Data()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names := []string{"last"}
	entries, _ := os.ReadDir(filepath.Join(data, "runs")) // none are completed then
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), word) {
			names = append(names, e.Name())
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) runsListCommand() *cobra.Command {
	var limit count
	c := &cobra.Command{
		Use: "list", Short: "List runs, the newest first", Args: cobra.NoArgs, Example: "  recluse runs list --limit 5",
		RunE: func(*cobra.Command, []string) error { return a.listRuns(int(limit)) },
	}
	c.Flags().Var(&limit, "limit", "`number` of runs (default all)")
	return c
}

func (a *app) listRuns(limit int) error {
	e, err := a.reader()
	if err != nil {
		return err
	}
	list := []*rlm.Info{}
	for i, err := range e.Runs() {
		if err != nil {
			a.tell(err) // one that cannot be read does not hide the others
			continue
		}
		list = append(list, i)
		if len(list) == limit {
			break
		}
	}
	if a.json {
		return writeJSON(a.stdout, list)
	}
	rows := [][]string{{"RUN", "STATE", "AGE", "TURNS", "TOKENS", "COST", "QUESTION"}}
	for _, i := range list {
		rows = append(rows, []string{
			i.ID, runState(i), ago(i.Started), strconv.Itoa(i.Turns), strconv.FormatInt(i.Usage.Tokens(), 10), fmt.Sprintf("$%.4f", i.Usage.Cost), clip(i.Query, 60),
		})
	}
	return table(a.stdout, rows)
}

func runState(i *rlm.Info) string {
	switch {
	case i.Running:
		return "running"
	case i.Result == nil:
		return "interrupted"
	}
	return string(i.Result.Reason)
}

func (a *app) runsShowCommand() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use: "show RUN", Short: "Tell what a run did", Args: cobra.ExactArgs(1), ValidArgsFunction: runFirst,
		Long:    "Tell what a run did, and its answer. With --json that is one object; with --events every event, one JSON object a line.",
		Example: "  recluse runs show last\n  recluse runs show last --events | jq -r .kind",
		RunE:    func(_ *cobra.Command, args []string) error { return a.showRun(args[0], all) },
	}
	c.Flags().BoolVar(&all, "events", false, "print its events")
	return c
}

// kept finds the run that somebody means, and what reads it.
func (a *app) kept(word string) (*rlm.Engine, *rlm.Info, error) {
	id, err := runID(word)
	if err != nil {
		return nil, nil, err
	}
	e, err := a.reader()
	if err != nil {
		return nil, nil, err
	}
	info, err := e.Show(id)
	return e, info, err
}

func (a *app) showRun(word string, all bool) error {
	e, info, err := a.kept(word)
	if err != nil {
		return err
	}
	id := info.ID
	if a.json && !all {
		return writeJSON(a.stdout, info)
	}
	lines := runview.NewLines(a.stdout)
	for ev, err := range e.Events(id) {
		if err != nil {
			return err
		}
		if all {
			if err := writeLine(a.stdout, ev); err != nil {
				return err
			}
			continue
		}
		lines.Event(ev)
	}
	if all {
		return nil
	}
	p := a.paint()
	switch {
	case info.Running:
		fmt.Fprintf(a.stdout, "\n%sa program works on it now%s\n", p.dim, p.off)
	case info.Result == nil:
		fmt.Fprintf(a.stdout, "\n%sinterrupted; recluse runs resume %s goes on%s\n", p.dim, id, p.off)
	default:
		fmt.Fprintln(a.stdout)
		a.answerOut(info.Result)
	}
	return nil
}

// goOn is what resume, replay and fork have in common.
type goOn struct {
	machine
	route
	limits v1.RunLimits
	mcp    []string
	quiet  bool
}

func (a *app) runsResumeCommand() *cobra.Command {
	var o goOn
	c := &cobra.Command{
		Use: "resume RUN", Short: "Go on with a run that was killed, or ended without an answer", Args: cobra.ExactArgs(1), ValidArgsFunction: runFirst,
		Long:    "Go on with a run whose program was killed, or which ended without an answer. Limits that are given are instead of the run's own, what it has spent included.",
		Example: "  recluse runs resume last\n  recluse runs resume last --max-tokens 2000000",
		RunE: func(c *cobra.Command, args []string) error {
			return a.goOn(c.Context(), &o, args[0], func(ctx context.Context, e *rlm.Engine, id string, l v1.RunLimits) (*rlm.Run, error) {
				return e.Resume(ctx, id, l)
			})
		},
	}
	o.register(c)
	return c
}

func (a *app) runsForkCommand() *cobra.Command {
	var (
		o  goOn
		at int
	)
	c := &cobra.Command{
		Use: "fork RUN --at TURN", Short: "Try again from one of a run's turns, as a new run", Args: cobra.ExactArgs(1), ValidArgsFunction: runFirst,
		Example: "  recluse runs fork last --at 5\n  recluse runs fork last --at 0 --model openai/gpt-6-sol",
		RunE: func(c *cobra.Command, args []string) error {
			return a.goOn(c.Context(), &o, args[0], func(ctx context.Context, e *rlm.Engine, id string, l v1.RunLimits) (*rlm.Run, error) {
				return e.Fork(ctx, id, at, l)
			})
		},
	}
	o.register(c)
	c.Flags().IntVar(&at, "at", 0, "the last `turn` that both runs share; 0: none")
	_ = c.MarkFlagRequired("at")
	return c
}

func (o *goOn) register(c *cobra.Command) {
	o.route.register(c.Flags())
	registerLimits(c.Flags(), &o.limits)
	o.machine.register(c.Flags())
	registerMCP(c.Flags(), &o.mcp)
	c.Flags().BoolVarP(&o.quiet, "quiet", "q", false, "print nothing but the answer")
}

// goOn goes on with a kept run, with its own models unless others are named.
func (a *app) goOn(ctx context.Context, o *goOn, word string, begin func(context.Context, *rlm.Engine, string, v1.RunLimits) (*rlm.Run, error)) error {
	_, info, err := a.kept(word)
	if err != nil {
		return err
	}
	id := info.ID
	r := llm.Route{Root: o.model, Sub: o.sub}
	if len(r.Sub) == 0 {
		r.Sub = strings.Fields(info.Labels[subModels])
	}
	cfg, err := a.config()
	if err != nil {
		return err
	}
	ctx, w := a.watch(ctx)
	defer w.stop()
	e, done, err := a.engine(ctx, w, &o.machine, cfg.Models, r, o.mcp)
	if err != nil {
		return cause(ctx, err)
	}
	defer done()
	return a.follow(ctx, w, o.quiet, func(ctx context.Context) (following, error) { return started(begin(ctx, e, id, o.limits)) })
}

func (a *app) runsReplayCommand() *cobra.Command {
	var (
		m     machine
		quiet bool
	)
	c := &cobra.Command{
		Use: "replay RUN", Short: "Run it again with the replies that models gave then", Args: cobra.ExactArgs(1), ValidArgsFunction: runFirst,
		Long:    "Run a kept run again in a new sandbox, with the replies that models gave then. No model is asked and nothing is paid.",
		Example: "  recluse runs replay last",
		RunE: func(c *cobra.Command, args []string) error {
			id, err := runID(args[0])
			if err != nil {
				return err
			}
			ctx, w := a.watch(c.Context())
			defer w.stop()
			e, err := a.engineOf(ctx, w, &m, rlm.Options{Models: func(int, string) (llm.Model, error) { return nil, rlm.NoModel() }})
			if err != nil {
				return cause(ctx, err)
			}
			return a.follow(ctx, w, quiet, func(ctx context.Context) (following, error) { return started(e.Replay(ctx, id)) })
		},
	}
	m.register(c.Flags())
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print nothing but the answer")
	return c
}

func (a *app) runsExportCommand() *cobra.Command {
	var format, out string
	c := &cobra.Command{
		Use: "export RUN", Short: "Write a run for other programs", Args: cobra.ExactArgs(1), ValidArgsFunction: runFirst,
		Long:    "Write a run for other programs: as rlm in the JSON Lines layout of the official Python library, whose viewer opens it; as events in our own.",
		Example: "  recluse runs export last --format rlm --output run.jsonl",
		RunE:    func(_ *cobra.Command, args []string) error { return a.exportRun(args[0], format, out) },
	}
	c.Flags().StringVar(&format, "format", "rlm", "`layout`: rlm or events")
	c.Flags().StringVarP(&out, "output", "o", "", "`file` to write, which must not be there (default stdout)")
	return c
}

func (a *app) exportRun(word, format, out string) error {
	id, err := runID(word)
	if err != nil {
		return err
	}
	e, err := a.reader()
	if err != nil {
		return err
	}
	write := func(w io.Writer) error { return e.Export(id, w) }
	switch format {
	case "rlm":
	case "events":
		write = func(w io.Writer) error {
			for ev, err := range e.Events(id) {
				if err != nil {
					return err
				}
				if err := writeLine(w, ev); err != nil {
					return err
				}
			}
			return nil
		}
	default:
		return usage("--format %s: there are rlm and events", format)
	}
	if out == "" {
		return write(a.stdout)
	}
	f, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return &sandbox.Error{Code: sandbox.CodeInvalidRequest, Op: "export run", Message: "the file cannot be made", Err: err}
	}
	err = write(f)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		_ = os.Remove(out) // half of it is of no use
	}
	return err
}

func (a *app) runsDeleteCommand() *cobra.Command {
	var m machine
	c := &cobra.Command{
		Use: "delete RUN...", Short: "Remove runs with their events and their copies of the context", Args: cobra.MinimumNArgs(1), ValidArgsFunction: runFirst,
		Example: "  recluse runs delete last",
		RunE:    func(c *cobra.Command, args []string) error { return a.deleteRuns(c.Context(), &m, args) },
	}
	m.choice.register(c.Flags())
	return c
}

func (a *app) deleteRuns(ctx context.Context, m *machine, words []string) error {
	ctx, w := a.watch(ctx)
	defer w.stop()
	e, err := a.engineOf(ctx, w, m, rlm.Options{Models: func(int, string) (llm.Model, error) { return nil, rlm.NoModel() }})
	if err != nil {
		return cause(ctx, err)
	}
	deleted := []string{}
	for _, word := range words {
		id, err := runID(word)
		if err != nil {
			return err
		}
		if err := e.Delete(ctx, id); err != nil {
			return cause(ctx, err)
		}
		deleted = append(deleted, id)
	}
	if a.json {
		return writeJSON(a.stdout, map[string][]string{"deleted": deleted})
	}
	return nil
}
