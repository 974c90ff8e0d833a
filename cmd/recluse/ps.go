package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/sandbox"
)

func (a *app) psCommand() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:     "ps SESSION",
		Short:   "List what runs in a session",
		Long:    "List the cells and commands that run in a session. kill and logs take the id, its beginning, or the pid.",
		Example: "  recluse ps work\n  recluse ps work --all     # also what has ended lately", Args: cobra.ExactArgs(1), ValidArgsFunction: a.sessionFirst,
		RunE: func(c *cobra.Command, args []string) error { return a.ps(c.Context(), args[0], all) },
	}
	c.Flags().BoolVar(&all, "all", false, "also what has ended lately")
	return c
}

func (a *app) ps(ctx context.Context, name string, all bool) error {
	s, info, done, err := a.session(ctx, name)
	if err != nil {
		return err
	}
	defer done()
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
	if a.json {
		return console.WriteJSON(a.stdout, ops)
	}
	rows := [][]string{{"ID", "PID", "KIND", "STATE", "TIME", "OUTPUT", "COMMAND"}}
	for _, o := range ops {
		state, t := "running", time.Since(o.Started)
		switch {
		case o.Verdict != nil:
			state, t = o.Verdict.String(), o.Verdict.Wall
		case !o.Running:
			state = "ended"
		case info.State == v1.StateHibernated:
			state = "asleep"
		}
		pid := "-"
		if o.PID > 0 {
			pid = strconv.Itoa(o.PID)
		}
		rows = append(rows, []string{o.ID, pid, o.Kind, console.Clip(state, 30), console.Span(t), console.Bytes(o.Stdout + o.Stderr), console.Clip(o.Command, 60)})
	}
	return console.Table(a.stdout, rows)
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
		Short: "End cells and commands of a session",
		Long: `End cells and commands of a session, with everything they started: politely, and after a moment by force. A cell is interrupted,
as by Ctrl-C, and its interpreter lives on if it heeds that.

With --signal that signal is sent instead, and nothing else is done.`,
		Example: "  recluse kill work 7\n  recluse kill work 7 --signal HUP", Args: cobra.MinimumNArgs(2), ValidArgsFunction: a.operationArgs,
		RunE: func(c *cobra.Command, args []string) error { return a.kill(c.Context(), args[0], args[1:], name, tree) },
	}
	c.Flags().StringVarP(&name, "signal", "s", "", "send this `signal`, by name or number")
	c.Flags().BoolVar(&tree, "tree", false, "with --signal: also to everything it started")
	return c
}

func (a *app) kill(ctx context.Context, name string, words []string, sigName string, tree bool) error {
	var sig syscall.Signal
	if sigName != "" {
		var ok bool
		if sig, ok = parseSignal(sigName); !ok {
			return usage("--signal %s: there is no such signal", sigName)
		}
	}
	s, _, done, err := a.session(ctx, name)
	if err != nil {
		return err
	}
	defer done()
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
		if sigName != "" {
			err = s.Signal(ctx, o.ID, sig, sandbox.SignalOptions{Tree: tree})
		} else {
			err = s.Cancel(ctx, o.ID)
		}
		if err != nil {
			return err
		}
		ids = append(ids, o.ID)
	}
	if a.json {
		return console.WriteJSON(a.stdout, map[string][]string{"signalled": ids})
	}
	return nil
}

func (a *app) logsCommand() *cobra.Command {
	var follow bool
	c := &cobra.Command{
		Use:   "logs SESSION ID",
		Short: "Print the output of a cell or command of a session",
		Long: `Print what a cell or command of a session has written so far, its errors on stderr; with --follow go on until it ends. Leaving
by Ctrl-C does not end it. With --json the output is in one value, with the verdict if it has ended.`,
		Example: "  recluse logs work 7\n  recluse logs work 7 --follow", Args: cobra.ExactArgs(2), ValidArgsFunction: a.operationArgs,
		RunE: func(c *cobra.Command, args []string) error { return a.logs(c.Context(), args[0], args[1], follow) },
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until it ends")
	return c
}

func (a *app) logs(ctx context.Context, name, word string, follow bool) error {
	ctx, w := a.watch(ctx)
	defer w.stop()
	s, _, done, err := a.session(ctx, name)
	if err != nil {
		return cause(ctx, err)
	}
	defer done()
	o, err := operation(ctx, s, word)
	if err != nil {
		return cause(ctx, err)
	}
	var out, errs strings.Builder
	opts := sandbox.FollowOptions{NoWait: !follow, Stdout: &output{w: a.stdout, cancel: w.cancel}, Stderr: &output{w: a.stderr, cancel: w.cancel}}
	opts.Skipped = func(_ int, n int64) { a.say("%s of earlier output are no longer kept", console.Bytes(n)) }
	if a.json {
		opts.Stdout, opts.Stderr = &out, &errs
	}
	v, err := s.Follow(ctx, o.ID, opts)
	switch why := context.Cause(ctx); {
	case why == errPipe: //nolint:errorlint // it is never wrapped
		return exit(statusPipe)
	case why != nil:
		return why
	case err != nil:
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

// operationArgs completes a session, and then its cells and commands.
func (a *app) operationArgs(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return a.sessionFirst(c, args, word)
	}
	var out []string
	a.look(c.Context(), func(ctx context.Context, cl *client.Client) {
		list, err := cl.Session(args[0]).Operations(ctx)
		if err != nil {
			return
		}
		for _, o := range list {
			if strings.HasPrefix(o.ID, word) {
				out = append(out, fmt.Sprintf("%s\t%s", o.ID, console.Clip(console.OneLine(o.Command), 40)))
			}
		}
	})
	return out, cobra.ShellCompDirectiveNoFileComp
}
