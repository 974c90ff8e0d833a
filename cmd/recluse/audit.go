package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/session"
)

func (a *app) auditCommand() *cobra.Command {
	var o session.AuditOptions
	c := &cobra.Command{
		Use:     "audit",
		Short:   "Print who ran what when, and how it ended",
		Long:    "Print the audit log, oldest first. With --json each entry is one line.",
		Example: "  recluse audit\n  recluse audit --session work --action command --json | jq .", Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			if o.Limit < 0 || o.After < 0 {
				return usage("--limit and --after are not negative")
			}
			return nil
		},
		RunE: a.served(func(ctx context.Context, c *client.Client, _ []string) error { return a.audit(ctx, c, o) }),
	}
	f := c.Flags()
	f.StringVar(&o.Session, "session", "", "only of the session of this `name`")
	f.StringVar(&o.Actor, "actor", "", "only what this `name` did: that of a key, or \"user NAME\"")
	f.StringVar(&o.Action, "action", "", "only this `action`: open, cell, command, end, snapshot, …")
	f.Int64Var(&o.After, "after", 0, "begin behind this `number`")
	f.IntVar(&o.Limit, "limit", 0, "at most this `number` of entries (default all)")
	a.completeSession(c, "session")
	return c
}

func (a *app) audit(ctx context.Context, c *client.Client, o session.AuditOptions) error {
	for e, err := range c.Audit(ctx, o) {
		if err != nil {
			return err
		}
		if a.json {
			if err := console.WriteLine(a.stdout, e); err != nil {
				return err
			}
			continue
		}
		line := fmt.Sprintf("%6d  %s  %-12s  %-12s  %-10s  %-10s  %s",
			e.ID, e.Time.Local().Format(time.DateTime), e.Actor, e.Session, e.Action, cmp.Or(e.Error, e.Verdict), console.Clip(e.Detail, 80))
		if _, err := fmt.Fprintln(a.stdout, console.OneLine(line)); err != nil {
			return err
		}
	}
	return nil
}
