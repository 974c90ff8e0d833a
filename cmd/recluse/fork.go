package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/session"
)

func (a *app) forkCommand() *cobra.Command {
	var (
		n     int
		names []string
	)
	c := &cobra.Command{
		Use:   "fork SESSION",
		Short: "Make live copies of a session, variables included",
		Long: `Make live copies of a session: memory, variables, processes and files. The copies are sessions of their own, named
SESSION-1, SESSION-2, … unless --name says otherwise.`,
		Example: "  recluse fork work --count 3\n  recluse fork work --name left --name right", Args: cobra.ExactArgs(1), ValidArgsFunction: a.sessionFirst,
		RunE: func(c *cobra.Command, args []string) error {
			if len(names) > 0 && n != 0 && n != len(names) {
				return usage("--count %d and %d names", n, len(names))
			}
			copies := max(n, len(names), 1)
			return a.fork(c.Context(), args[0], copies, names)
		},
	}
	c.Flags().Var(valueOf(&n), "count", "how many (default 1)")
	c.Flags().StringArrayVar(&names, "name", nil, "`name` of a copy (repeatable)")
	return c
}

func (a *app) fork(ctx context.Context, name string, n int, names []string) error {
	ctx, w := a.watch(ctx)
	defer w.stop()
	s, _, done, err := a.session(ctx, name)
	if err != nil {
		return cause(ctx, err)
	}
	defer done()
	made, err := s.Fork(ctx, n, names)
	if err != nil {
		return cause(ctx, err)
	}
	if !a.json {
		for _, f := range made {
			fmt.Fprintln(a.stdout, f.Name())
		}
		return nil
	}
	infos := []session.Info{}
	for _, f := range made {
		i, err := f.Info(ctx)
		if err != nil {
			return cause(ctx, err)
		}
		infos = append(infos, i)
	}
	return console.WriteJSON(a.stdout, infos)
}
