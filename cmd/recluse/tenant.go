package main

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
)

// quotaFlags declares the fields of a quota as flags.
func quotaFlags(c *cobra.Command, q *v1.Quota) {
	for _, l := range q.Fields() {
		doc := strings.Replace(l.Doc, ", in bytes", "", 1) // that is the unit in JSON; a flag takes any unit
		c.Flags().Var(l, l.Flag, doc)
		setGroup(c.Flags(), groupQuota, l.Flag)
	}
}

func (a *app) tenantCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "tenant",
		Short: "List tenants and set their quotas",
		Long: `List tenants and set their quotas.

A tenant owns sessions, snapshots and keys, which other tenants cannot see. It exists as
soon as it has a key, a session or a quota. The quota of a tenant applies to all its keys
together. Quotas of a key (recluse key create) and of the server (quota in the
configuration) apply, too; the lowest value counts.`,
		Example: `  recluse tenant set team-a --max-memory 16g --max-sessions 20 --max-spend 50
  recluse tenant list
  recluse tenant show team-a
  recluse tenant remove team-a`,
	}
	c.AddCommand(a.tenantListCommand(), a.tenantShowCommand(), a.tenantSetCommand(), a.tenantRemoveCommand())
	return c
}

func (a *app) tenantListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List tenants and their quotas",
		Example: "  recluse tenant list",
		Args:    cobra.NoArgs,
		RunE: a.served(func(ctx context.Context, c *client.Client, _ []string) error {
			all, err := c.Tenants(ctx)
			if err != nil {
				return err
			}
			rows := [][]string{{"NAME", "KEYS", "SESSIONS", "QUOTA"}}
			for _, t := range all {
				rows = append(rows, []string{
					t.Name, strconv.Itoa(t.Keys), strconv.Itoa(t.Sessions), quotaText(t.Quota),
				})
			}
			return a.resultTable(all, rows)
		}),
	}
}

// printTenant prints a tenant with its quota.
func (a *app) printTenant(t v1.Tenant) error {
	rows := [][]string{{"tenant", t.Name}, {"keys", strconv.Itoa(t.Keys)}, {"sessions", strconv.Itoa(t.Sessions)}}
	for _, f := range t.Quota.Fields() {
		if f.IsSet() {
			rows = append(rows, []string{f.Flag, f.String()})
		}
	}
	return a.resultTable(t, rows)
}

// quotaText returns a quota in one line.
func quotaText(q v1.Quota) string {
	var out []string
	for _, f := range q.Fields() {
		if f.IsSet() {
			out = append(out, f.Name+"="+f.String())
		}
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, " ")
}

func (a *app) tenantShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "show NAME",
		Short:   "Show a tenant and its quota",
		Example: "  recluse tenant show team-a",
		Args:    cobra.ExactArgs(1),
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			t, err := c.Tenant(ctx, args[0])
			if err != nil {
				return err
			}
			return a.printTenant(t)
		}),
	}
}

func (a *app) tenantSetCommand() *cobra.Command {
	var q v1.Quota
	c := &cobra.Command{
		Use:   "set NAME",
		Short: "Set the quota of a tenant",
		Long: `Set the quota of a tenant.

The quota limits what all sessions and runs of the tenant use together. Values that are
not given do not change; none removes a value. Existing sessions continue if the tenant
already uses more than a new value, but it gets no more until it uses less.`,
		Example: `  recluse tenant set team-a --max-memory 16g --max-sessions 20
  recluse tenant set team-a --max-sessions none`,
		Args: cobra.ExactArgs(1),
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			all, err := c.Tenants(ctx)
			if err != nil {
				return err
			}
			for _, t := range all {
				if t.Name == args[0] {
					q = q.Over(t.Quota)
				}
			}
			t, err := c.SetTenant(ctx, args[0], q)
			if err != nil {
				return err
			}
			return a.printTenant(t)
		}),
	}
	quotaFlags(c, &q)
	return c
}

func (a *app) tenantRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "remove NAME...",
		Aliases: []string{"rm"},
		Short:   "Remove the quotas of tenants",
		Long: `Remove the quotas of tenants.

Their keys and sessions stay. To end those, use recluse key revoke and recluse session end.`,
		Example: "  recluse tenant remove team-a",
		Args:    cobra.MinimumNArgs(1),
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			for _, name := range args {
				if err := c.RemoveTenant(ctx, name); err != nil {
					return err
				}
			}
			return a.result(map[string][]string{"removed": args}, "")
		}),
	}
}
