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

// policyFlag is a network policy in one line.
type policyFlag struct{ policy **v1.Network }

// Set implements pflag.Value. The server checks the rules.
func (f policyFlag) Set(text string) error {
	n := v1.ParseNetwork(text)
	*f.policy = &n
	return nil
}

// String implements pflag.Value.
func (f policyFlag) String() string {
	if f.policy == nil || *f.policy == nil {
		return ""
	}
	return (*f.policy).String()
}

// Type implements pflag.Value.
func (policyFlag) Type() string { return "policy" }

// networkFlags declares the bounds of network policies as flags.
func networkFlags(c *cobra.Command, b *v1.NetworkBounds) {
	c.Flags().Var(policyFlag{&b.Default}, "net-default",
		"network policy of sessions that are opened without one, such as 'allow api.github.com, packages'")
	c.Flags().Var(policyFlag{&b.Max}, "net-max",
		"most that network policies may allow, such as 'deny *.corp.example, public'")
	setGroup(c.Flags(), groupNetwork, "net-default", "net-max")
}

// networkRows returns the rows of a table for bounds.
func networkRows(b v1.NetworkBounds) (rows [][]string) {
	if b.Default != nil {
		rows = append(rows, []string{"net-default", b.Default.String()})
	}
	if b.Max != nil {
		rows = append(rows, []string{"net-max", b.Max.String()})
	}
	return rows
}

func (a *app) tenantCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "tenant",
		Short: "List tenants; set their quotas and network bounds",
		Long: `List tenants; set their quotas and network bounds.

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
	return a.resultTable(t, append(rows, networkRows(t.Network)...))
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
	var set v1.TenantSettings
	c := &cobra.Command{
		Use:   "set NAME",
		Short: "Set quota and network bounds of a tenant",
		Long: `Set quota and network bounds of a tenant.

The quota limits what all sessions and runs of the tenant use together. Values that are
not given do not change; none removes a value. Existing sessions continue if the tenant
already uses more than a new value, but it gets no more until it uses less.

A policy is given in one line: rules with commas between them, and a preset. An empty text
removes it. A new maximum applies at once, also to open connections.`,
		Example: `  recluse tenant set team-a --max-memory 16g --max-sessions 20
  recluse tenant set team-a --net-default packages --net-max public
  recluse tenant set team-a --max-sessions none`,
		Args: cobra.ExactArgs(1),
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			all, err := c.Tenants(ctx)
			if err != nil {
				return err
			}
			for _, t := range all {
				if t.Name == args[0] {
					set.Quota, set.Network = set.Quota.Over(t.Quota), set.Network.Over(t.Network)
				}
			}
			for _, p := range []**v1.Network{&set.Network.Default, &set.Network.Max} {
				if *p != nil && !(*p).IsSet() {
					*p = nil
				}
			}
			t, err := c.SetTenant(ctx, args[0], set)
			if err != nil {
				return err
			}
			return a.printTenant(t)
		}),
	}
	quotaFlags(c, &set.Quota)
	networkFlags(c, &set.Network)
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
