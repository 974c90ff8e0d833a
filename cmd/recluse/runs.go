package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/internal/xdg"
	"github.com/recluse-dev/recluse/rlm"
)

func (a *app) runsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "runs",
		Short: "List, show, watch, resume, fork and replay runs of recluse ask",
		Long: `List, show, watch, resume, fork and replay runs of recluse ask.

RUN is the id of a run, the beginning or end of an id, or the word last.

Runs work in the server and continue if recluse ask is killed. If the server is killed,
the next one continues them. An interrupted run can be resumed: it uses its old sandbox if
that still exists, else a restored or new one. Only model calls that were interrupted are
paid again.`,
		Example: `  recluse runs list
  recluse runs show last
  recluse runs resume 20260915-101112-0a1b2c3d --max-time 10m
  recluse runs fork last --at 5
  recluse runs export last --format rlm > run.jsonl`,
	}
	c.AddCommand(
		a.runsListCommand(), a.runsShowCommand(), a.runsWatchCommand(), a.runsCancelCommand(), a.runsResumeCommand(),
		a.runsReplayCommand(), a.runsForkCommand(), a.runsExportCommand(), a.runsDeleteCommand(),
	)
	return c
}

// findRun returns the run that word names: by id, by a unique beginning or end of an id, or as "last".
func findRun(ctx context.Context, c *client.Client, word string) (*rlm.Info, error) {
	if word != "last" && word != "" {
		if info, err := c.Run(ctx, word); v1.CodeOf(err) != v1.CodeRunNotFound {
			return info, err
		}
	}
	var found []*rlm.Info
	var failed error
	for i, err := range c.Runs(ctx) {
		if err != nil {
			failed = err
			continue // an unreadable run does not hide the others
		}
		if word == "last" {
			// The server lists runs that started in the same second in any order.
			if len(found) > 0 && second(i) != second(found[0]) {
				break
			}
			found = append(found, i)
		} else if word != "" && (strings.HasPrefix(i.ID, word) || strings.HasSuffix(i.ID, word)) {
			found = append(found, i)
		}
	}
	if len(found) == 0 {
		return nil, &v1.Error{
			Code:    v1.CodeRunNotFound,
			Op:      "find run",
			Message: fmt.Sprintf("run %q not found", word),
			Remedy:  "list runs with recluse runs list",
			Err:     failed,
		}
	}
	if len(found) > 1 && word != "last" {
		return nil, &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "find run",
			Message: fmt.Sprintf("%q matches %d runs", word, len(found)),
			Remedy:  "give more of the id",
		}
	}
	newest := slices.MaxFunc(found, func(a, b *rlm.Info) int { return a.Started.Compare(b.Started) })
	return c.Run(ctx, newest.ID)
}

// second returns the start time of a run, to the second, from the beginning of its id.
func second(i *rlm.Info) string { return i.ID[:min(len("20060102-150405"), len(i.ID))] }

// runFirst completes the first argument with ids of runs.
func runFirst(_ *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	data, err := xdg.Data()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names := []string{"last"}
	entries, _ := os.ReadDir(filepath.Join(data, "runs")) // completion reports no errors
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), word) {
			names = append(names, e.Name())
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// withRun returns the body of a verb whose first argument names a run.
func (a *app) withRun(do func(context.Context, *client.Client, *rlm.Info) error) func(*cobra.Command, []string) error {
	return a.served(func(ctx context.Context, c *client.Client, args []string) error {
		info, err := findRun(ctx, c, args[0])
		if err != nil {
			return err
		}
		return do(ctx, c, info)
	})
}

func (a *app) runsListCommand() *cobra.Command {
	var limit int
	c := &cobra.Command{
		Use:     "list",
		Short:   "List runs, newest first",
		Args:    cobra.NoArgs,
		Example: "  recluse runs list --limit 5",
		RunE: a.served(func(ctx context.Context, c *client.Client, _ []string) error {
			return a.listRuns(ctx, c, limit)
		}),
	}
	c.Flags().Var(valueOf(&limit), "limit", "maximum `number` of runs (default all)")
	return c
}

func (a *app) listRuns(ctx context.Context, c *client.Client, limit int) error {
	list := []*rlm.Info{}
	for i, err := range c.Runs(ctx) {
		if err != nil {
			a.printError(err) // an unreadable run does not hide the others
			continue
		}
		list = append(list, i)
		if len(list) == limit {
			break
		}
	}
	return a.resultTable(list, runRows(list))
}

func runRows(list []*rlm.Info) [][]string {
	rows := [][]string{{"RUN", "STATE", "AGE", "TURNS", "TOKENS", "COST", "QUESTION"}}
	for _, i := range list {
		rows = append(rows, []string{
			i.ID,
			runState(i),
			console.Ago(i.Started),
			strconv.Itoa(i.Turns),
			estimated(i, strconv.FormatInt(i.Usage.Tokens(), 10)),
			runCost(i),
			i.Query,
		})
	}
	return rows
}

// runCost returns the cost of a run, or "-" if no price is known.
func runCost(i *rlm.Info) string {
	if i.Usage.Cost == 0 && i.Usage.Unpriced {
		return "-"
	}
	return estimated(i, fmt.Sprintf("$%.4f", i.Usage.Cost))
}

// estimated marks a figure of a run if it is an estimate.
func estimated(i *rlm.Info, figure string) string {
	if i.Usage.Estimated {
		return "≈" + figure
	}
	return figure
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

// writeEvents writes the events of a run so far, one JSON object a line.
func writeEvents(ctx context.Context, c *client.Client, id string, w io.Writer) error {
	for ev, err := range c.PastRunEvents(ctx, id) {
		if err != nil {
			return err
		}
		if err := console.WriteLine(w, ev); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) runsCancelCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "cancel RUN",
		Short:             "Stop a run, and print the best answer so far",
		Example:           "  recluse runs cancel last",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: runFirst,
		RunE: a.withRun(func(ctx context.Context, c *client.Client, i *rlm.Info) error {
			i, err := c.CancelRun(ctx, i.ID)
			if err != nil {
				return err
			}
			if a.json || i.Result == nil {
				return a.result(i, "")
			}
			a.printAnswer(i.Result)
			return nil
		}),
	}
}

func (a *app) runsResumeCommand() *cobra.Command {
	var o runFlags
	c := &cobra.Command{
		Use:   "resume RUN",
		Short: "Continue a run that was interrupted or has no answer",
		Long: `Continue a run that was interrupted or has no answer.

Given limits replace those of the run. What the run has already spent counts. A given
model is used from the next turn on.`,
		Example: `  recluse runs resume last
  recluse runs resume last --max-tokens 2000000 --model openai/gpt-6-sol`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: runFirst,
		RunE: func(c *cobra.Command, args []string) error {
			return a.continueRun(c.Context(), &o, args[0], (*client.Client).ResumeRun)
		},
	}
	o.register(c.Flags())
	return c
}

func (a *app) runsForkCommand() *cobra.Command {
	var (
		o  runFlags
		at int
	)
	c := &cobra.Command{
		Use:               "fork RUN --at TURN",
		Short:             "Start a new run that shares the first turns of another",
		Example:           "  recluse runs fork last --at 5\n  recluse runs fork last --at 0 --model openai/gpt-6-sol",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: runFirst,
		RunE: func(c *cobra.Command, args []string) error {
			fork := func(c *client.Client, ctx context.Context, id string, again client.RunAgain) (*rlm.Info, error) {
				return c.ForkRun(ctx, id, at, again)
			}
			return a.continueRun(c.Context(), &o, args[0], fork)
		},
	}
	o.register(c.Flags())
	c.Flags().IntVar(&at, "at", 0, "last `turn` that both runs share; 0: none")
	_ = c.MarkFlagRequired("at")
	return c
}

// continueRun calls begin, which resumes or forks the named run, and follows the run to its end. The run keeps its
// models unless flags name others.
func (a *app) continueRun(
	ctx context.Context,
	o *runFlags,
	word string,
	begin func(*client.Client, context.Context, string, client.RunAgain) (*rlm.Info, error),
) error {
	host, err := o.host(a)
	if err != nil {
		return err
	}
	return a.inServer(ctx, o.quiet, func(ctx context.Context, c *client.Client) (*rlm.Info, error) {
		info, err := findRun(ctx, c, word)
		if err != nil {
			return nil, err
		}
		return begin(c, ctx, info.ID, client.RunAgain{Model: o.model, SubModels: o.sub, Limits: o.limits, Host: host})
	})
}

func (a *app) runsReplayCommand() *cobra.Command {
	var (
		f     sandboxFlags
		quiet bool
	)
	c := &cobra.Command{
		Use:   "replay RUN",
		Short: "Repeat a run with the recorded replies of the models",
		Long: `Repeat a run with the recorded replies of the models.

The code of the run is executed again in a new sandbox. No model is called, so it costs
nothing.`,
		Example:           "  recluse runs replay last",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: runFirst,
		RunE: func(c *cobra.Command, args []string) error {
			host, err := f.host(a)
			if err != nil {
				return err
			}
			return a.inServer(c.Context(), quiet, func(ctx context.Context, c *client.Client) (*rlm.Info, error) {
				info, err := findRun(ctx, c, args[0])
				if err != nil {
					return nil, err
				}
				return c.ReplayRun(ctx, info.ID, host)
			})
		},
	}
	f.register(c.Flags())
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only the answer")
	return c
}

func (a *app) runsExportCommand() *cobra.Command {
	var format, out string
	c := &cobra.Command{
		Use:   "export RUN",
		Short: "Write a run to a file for other programs",
		Long: `Write a run to a file for other programs.

Formats:
  rlm     JSON Lines of the official Python library, for its viewer
  events  the events of recluse, as runs show --events prints them`,
		Example:           "  recluse runs export last --format rlm --output run.jsonl",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: runFirst,
		RunE: func(c *cobra.Command, args []string) error {
			if format != "rlm" && format != "events" {
				return usage("invalid format %q: want rlm or events", format)
			}
			return a.withRun(func(ctx context.Context, c *client.Client, i *rlm.Info) error {
				return a.exportRun(out, func(w io.Writer) error {
					if format == "rlm" {
						return c.ExportRun(ctx, i.ID, w)
					}
					return writeEvents(ctx, c, i.ID, w)
				})
			})(c, args)
		},
	}
	c.Flags().StringVar(&format, "format", "rlm", "format of the output")
	c.Flags().StringVarP(&out, "output", "o", "", "`file` to create; it must not exist (default stdout)")
	completeWords(c, "format", "rlm", "events")
	return c
}

// exportRun writes a run to a new file, or to stdout.
func (a *app) exportRun(out string, write func(io.Writer) error) error {
	if out == "" {
		return write(a.stdout)
	}
	f, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return &v1.Error{Code: v1.CodeInvalidRequest, Op: "export run", Message: "cannot create the file", Err: err}
	}
	if err = errors.Join(write(f), f.Close()); err != nil {
		_ = os.Remove(out) // an incomplete file is useless
	}
	return err
}

func (a *app) runsDeleteCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "delete RUN...",
		Short:             "Delete runs with their events and copies of the context",
		Example:           "  recluse runs delete last",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: runFirst,
		RunE:              a.served(a.deleteRuns),
	}
}

func (a *app) deleteRuns(ctx context.Context, c *client.Client, words []string) error {
	deleted := []string{}
	for _, word := range words {
		info, err := findRun(ctx, c, word)
		if err != nil {
			return err
		}
		if err := c.DeleteRun(ctx, info.ID); err != nil {
			return err
		}
		deleted = append(deleted, info.ID)
	}
	return a.result(map[string][]string{"deleted": deleted}, "")
}
