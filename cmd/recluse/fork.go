package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/session"
)

func (a *app) forkCommand() *cobra.Command {
	var (
		n     int
		names []string
	)
	c := &cobra.Command{
		Use:   "fork SESSION",
		Short: "Make live copies of a session",
		Long: `Make live copies of a session.

A copy has the memory, Python variables, processes and files of the session. The copies
are independent sessions, named SESSION-1, SESSION-2, … unless --name is given.`,
		Example:           "  recluse fork work --count 3\n  recluse fork work --name left --name right",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.sessionFirst,
		PreRunE: func(*cobra.Command, []string) error {
			if len(names) > 0 && n != 0 && n != len(names) {
				return usage("--count is %d, but %d names are given", n, len(names))
			}
			return nil
		},
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			s := c.Session(args[0])
			done := a.saving("forking", s)
			made, err := s.Fork(ctx, max(n, len(names), 1), names)
			done()
			if err != nil {
				return err
			}
			infos, lines := []session.Info{}, ""
			for _, f := range made {
				lines += f.Name() + "\n"
				i, err := f.Info(ctx)
				if err != nil && a.json {
					return err
				}
				infos = append(infos, i)
				if i.Previous != nil && !a.json {
					a.notice("session %s is new; the previous one of its name %s", f.Name(), i.Previous)
				}
			}
			return a.result(infos, "%s", lines)
		}),
	}
	c.Flags().Var(valueOf(&n), "count", "`number` of copies (default 1)")
	c.Flags().StringArrayVar(&names, "name", nil, "`name` of a copy (repeatable)")
	return c
}
