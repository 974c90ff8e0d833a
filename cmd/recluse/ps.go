package main

import (
	"cmp"
	"context"
	"slices"
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
		Short: "List running cells, commands and processes of a session",
		Long: `List running cells, commands and processes of a session, and the TCP ports on which they
listen.

A process in the list is one that an ended cell or command has left running. recluse kill
takes the id, its beginning, or the pid. So does recluse logs, for cells and commands.`,
		Example:           "  recluse ps work\n  recluse ps work --all     # include recently ended ones",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.sessionFirst,
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			return a.ps(ctx, c, args[0], all)
		}),
	}
	c.Flags().BoolVar(&all, "all", false, "include recently ended cells and commands")
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
	ports, err := s.Ports(ctx)
	if v1.CodeOf(err) == v1.CodeNotSupported { // a snapshot has an older guest
		ports, err = nil, nil
	}
	if err != nil {
		return err
	}
	ops := []sandbox.Operation{}
	for _, o := range list {
		if o.Running || all {
			ops = append(ops, o)
		}
	}
	entries := withPorts(ops, ports)
	return a.resultTable(entries, operationRows(entries, info.State))
}

// psEntry is an entry of the list: an operation, or another process that listens, such as an interpreter between cells.
type psEntry struct {
	sandbox.Operation
	Ports []int `json:"ports,omitempty"`
}

// withPorts adds the ports on which operations listen.
func withPorts(ops []sandbox.Operation, ports []sandbox.Port) []psEntry {
	all := []psEntry{}
	for _, o := range ops {
		all = append(all, psEntry{Operation: o})
	}
	for _, p := range ports {
		i := slices.IndexFunc(all, func(e psEntry) bool {
			return p.Operation != "" && e.ID == p.Operation || p.Operation == "" && e.Running && e.PID == p.PID
		})
		if i < 0 {
			i = len(all)
			all = append(all, psEntry{Operation: sandbox.Operation{
				ID:      "-",
				Kind:    v1.OperationProcess,
				Command: p.Command,
				Running: true,
				PID:     p.PID,
			}})
		}
		if !slices.Contains(all[i].Ports, p.Port) { // it may listen on IPv4 and IPv6
			all[i].Ports = append(all[i].Ports, p.Port)
		}
	}
	return all
}

func operationRows(entries []psEntry, of session.State) [][]string {
	listens := slices.ContainsFunc(entries, func(e psEntry) bool { return e.Ports != nil })
	clipped := 0 // columns that the ports need
	if listens {
		clipped = 8
	}
	row := func(before []string, ports, command string) []string {
		if listens {
			before = append(before, ports)
		}
		return append(before, command)
	}
	rows := [][]string{row([]string{"ID", "PID", "KIND", "STATE", "TIME", "OUTPUT"}, "PORTS", "COMMAND")}
	for _, e := range entries {
		o := e.Operation
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
		span := console.Span(t)
		if o.Started.IsZero() {
			span = "-"
		}
		var ports []string
		for _, p := range e.Ports {
			ports = append(ports, strconv.Itoa(p))
		}
		before := []string{o.ID, pid, o.Kind, console.Clip(state, 20-clipped), span, output}
		rows = append(rows, row(before, console.Clip(cmp.Or(strings.Join(ports, ","), "-"), 9), o.Command))
	}
	return rows
}

// operation returns the operation that the user names by its id, the beginning of an id, or a pid. If several
// operations have the pid, it returns the running one, else the last.
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
		return sandbox.Operation{}, usage("%q matches %d ids", word, len(begin))
	}
	// A hibernated session lists only some operations.
	if o, err := s.Operation(ctx, word); v1.CodeOf(err) != v1.CodeNotFound {
		return o, err
	}
	return sandbox.Operation{}, &v1.Error{
		Code:    v1.CodeNotFound,
		Op:      "find " + word,
		Message: "cell or command not found in the session",
		Remedy:  "list them with recluse ps SESSION --all",
	}
}

func (a *app) killCommand() *cobra.Command {
	var (
		name string
		tree bool
	)
	c := &cobra.Command{
		Use:   "kill SESSION ID...",
		Short: "Stop cells, commands and processes of a session",
		Long: `Stop cells, commands and processes of a session.

A command and all processes it started get SIGTERM and, after a grace, SIGKILL. A cell is
interrupted, as by Ctrl-C; its interpreter stays if the cell ends in time. A process that
an ended cell or command left running is stopped with its children.

With --signal, only that signal is sent.`,
		Example:           "  recluse kill work 7\n  recluse kill work 7 --signal HUP",
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: a.operationArgs,
		RunE: func(c *cobra.Command, args []string) error {
			sig, ok := parseSignal(name)
			if name != "" && !ok {
				return usage("--signal: unknown signal %q", name)
			}
			return a.served(func(ctx context.Context, c *client.Client, args []string) error {
				return a.kill(ctx, c.Session(args[0]), args[1:], sig, sandbox.SignalOptions{Tree: tree})
			})(c, args)
		},
	}
	c.Flags().StringVarP(&name, "signal", "s", "", "`signal` to send, by name or number")
	c.Flags().BoolVar(&tree, "tree", false,
		"with --signal: also send it to all processes that the cell or command started")
	return c
}

// kill sends a signal to cells and commands. If sig is 0, it cancels them.
func (a *app) kill(
	ctx context.Context,
	s *client.Session,
	words []string,
	sig syscall.Signal,
	opts sandbox.SignalOptions,
) error {
	ids := []string{}
	for _, word := range words {
		o, err := operation(ctx, s, word)
		if err != nil {
			return err
		}
		if !o.Running {
			a.notice("%s has already ended", o.ID)
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
		Long: `Print the output of a cell or command of a session.

Its stdout and stderr so far are printed on stdout and stderr. With --follow, new output is
printed until it ends; Ctrl-C stops the printing, not the cell or command. With --json,
output and verdict are printed as one object.`,
		Example:           "  recluse logs work 7\n  recluse logs work 7 --follow",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: a.operationArgs,
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			return a.logs(ctx, c.Session(args[0]), args[1], follow)
		}),
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "print new output until the cell or command ends")
	return c
}

func (a *app) logs(ctx context.Context, s *client.Session, word string, follow bool) error {
	o, err := operation(ctx, s, word)
	if err != nil {
		return err
	}
	var out, errs strings.Builder
	opts := sandbox.FollowOptions{NoWait: !follow, Stdout: a.output(a.stdout), Stderr: a.output(a.stderr)}
	opts.Skipped = func(_ int, n int64) { a.notice("%s of earlier output are no longer kept", console.Bytes(n)) }
	if a.json {
		opts.Stdout, opts.Stderr = &out, &errs
	}
	v, err := s.Follow(ctx, o.ID, opts)
	if err != nil {
		return untilSignal(ctx, err)
	}
	if a.json {
		return console.WriteJSON(a.stdout, map[string]any{
			"id":      o.ID,
			"running": v == nil,
			"stdout":  out.String(),
			"stderr":  errs.String(),
			"verdict": v,
		})
	}
	if follow && v != nil && v.Ended != v1.EndedExit {
		a.notice("%s", v)
	}
	return nil
}
