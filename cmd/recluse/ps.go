package main

import (
	"context"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

func (a *app) psCommand() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "ps SESSION",
		Short: "List what runs in a session",
		Long: `List the cells and commands that run in a session, and the processes that ended ones have left running. kill takes the id, its beginning,
or the pid; so does logs, of cells and commands.`,
		Example: "  recluse ps work\n  recluse ps work --all     # also what has ended lately", Args: cobra.ExactArgs(1), ValidArgsFunction: a.sessionFirst,
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error { return a.ps(ctx, c, args[0], all) }),
	}
	c.Flags().BoolVar(&all, "all", false, "also what has ended lately")
	return c
}

func (a *app) ps(ctx context.Context, c *client.Client, name string, all bool) error {
	s, info, err := c.Get(ctx, name)
	if err != nil {
		return err
	}
	list, err := s.Operations(ctx)
	if err != nil {
		return err
	}
	ops := []sandbox.Operation{}
	for _, o := range list {
		if o.Running || all {
			ops = append(ops, o)
		}
	}
	return a.resultTable(ops, operationRows(ops, info.State))
}

func operationRows(ops []sandbox.Operation, of session.State) [][]string {
	rows := [][]string{{"ID", "PID", "KIND", "STATE", "TIME", "OUTPUT", "COMMAND"}}
	for _, o := range ops {
		state, t, output := "running", time.Since(o.Started), console.Bytes(o.Stdout+o.Stderr)
		switch {
		case o.Kind == v1.OperationProcess:
			state, output = "left", "-"
		case o.Verdict != nil:
			state, t = o.Verdict.String(), o.Verdict.Wall
		case !o.Running:
			state = "ended"
		case of == v1.StateHibernated:
			state = "asleep"
		}
		pid := "-"
		if o.PID > 0 {
			pid = strconv.Itoa(o.PID)
		}
		rows = append(rows, []string{o.ID, pid, o.Kind, console.Clip(state, 20), console.Span(t), output, o.Command})
	}
	return rows
}

// operation finds what the user names: an id, the beginning of one, or a pid. Of several with one pid the running one is meant, else
// the last.
func operation(ctx context.Context, s *client.Session, word string) (sandbox.Operation, error) {
	list, err := s.Operations(ctx)
	if err != nil {
		return sandbox.Operation{}, err
	}
	var begin, byPID []sandbox.Operation
	for _, o := range list {
		switch {
		case o.ID == word:
			return o, nil
		case o.PID > 0 && strconv.Itoa(o.PID) == word:
			if o.Running {
				return o, nil
			}
			byPID = append(byPID, o)
		case strings.HasPrefix(o.ID, word):
			begin = append(begin, o)
		}
	}
	switch {
	case len(byPID) > 0:
		return byPID[len(byPID)-1], nil
	case len(begin) == 1:
		return begin[0], nil
	case len(begin) > 1:
		return sandbox.Operation{}, usage("%q is the beginning of %d ids", word, len(begin))
	}
	if o, err := s.Operation(ctx, word); v1.CodeOf(err) != v1.CodeNotFound { // of a session that sleeps only some are listed
		return o, err
	}
	return sandbox.Operation{}, &v1.Error{
		Code: v1.CodeNotFound, Op: "find " + word, Message: "there is no such cell or command in the session", Remedy: "recluse ps SESSION --all lists them",
	}
}

func (a *app) killCommand() *cobra.Command {
	var (
		name string
		tree bool
	)
	c := &cobra.Command{
		Use:   "kill SESSION ID...",
		Short: "End cells, commands and processes of a session",
		Long: `End cells and commands of a session, with everything they started: politely, and after a moment by force. A cell is interrupted,
as by Ctrl-C, and its interpreter lives on if it heeds that. A process that an ended one has left running is ended with its children.

With --signal that signal is sent instead, and nothing else is done.`,
		Example: "  recluse kill work 7\n  recluse kill work 7 --signal HUP", Args: cobra.MinimumNArgs(2), ValidArgsFunction: a.operationArgs,
		RunE: func(c *cobra.Command, args []string) error {
			sig, ok := parseSignal(name)
			if name != "" && !ok {
				return usage("--signal %s: there is no such signal", name)
			}
			return a.served(func(ctx context.Context, c *client.Client, args []string) error {
				return a.kill(ctx, c.Session(args[0]), args[1:], sig, sandbox.SignalOptions{Tree: tree})
			})(c, args)
		},
	}
	c.Flags().StringVarP(&name, "signal", "s", "", "send this `signal`, by name or number")
	c.Flags().BoolVar(&tree, "tree", false, "with --signal: also to everything it started")
	return c
}

// kill sends a signal to cells and commands; 0 cancels them.
func (a *app) kill(ctx context.Context, s *client.Session, words []string, sig syscall.Signal, opts sandbox.SignalOptions) error {
	ids := []string{}
	for _, word := range words {
		o, err := operation(ctx, s, word)
		if err != nil {
			return err
		}
		if !o.Running {
			a.say("%s has ended already", o.ID)
			continue
		}
		if sig != 0 {
			err = s.Signal(ctx, o.ID, sig, opts)
		} else {
			err = s.Cancel(ctx, o.ID)
		}
		if err != nil {
			return err
		}
		ids = append(ids, o.ID)
	}
	return a.result(map[string][]string{"signalled": ids}, "")
}

func (a *app) logsCommand() *cobra.Command {
	var follow bool
	c := &cobra.Command{
		Use:   "logs SESSION ID",
		Short: "Print the output of a cell or command of a session",
		Long: `Print what a cell or command of a session has written so far, its errors on stderr; with --follow go on until it ends. Leaving
by Ctrl-C does not end it. With --json the output is in one value, with the verdict if it has ended.`,
		Example: "  recluse logs work 7\n  recluse logs work 7 --follow", Args: cobra.ExactArgs(2), ValidArgsFunction: a.operationArgs,
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			return a.logs(ctx, c.Session(args[0]), args[1], follow)
		}),
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until it ends")
	return c
}

func (a *app) logs(ctx context.Context, s *client.Session, word string, follow bool) error {
	o, err := operation(ctx, s, word)
	if err != nil {
		return err
	}
	var out, errs strings.Builder
	opts := sandbox.FollowOptions{NoWait: !follow, Stdout: a.output(a.stdout), Stderr: a.output(a.stderr)}
	opts.Skipped = func(_ int, n int64) { a.say("%s of earlier output are no longer kept", console.Bytes(n)) }
	if a.json {
		opts.Stdout, opts.Stderr = &out, &errs
	}
	v, err := s.Follow(ctx, o.ID, opts)
	if err != nil {
		return err
	}
	if a.json {
		return console.WriteJSON(a.stdout, map[string]any{"id": o.ID, "running": v == nil, "stdout": out.String(), "stderr": errs.String(), "verdict": v})
	}
	if follow && v != nil && v.Ended != v1.EndedExit {
		a.say("%s", v)
	}
	return nil
}
