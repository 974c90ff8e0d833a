package main

import (
	"context"

	"github.com/spf13/cobra"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
)

func (a *app) usageCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "usage",
		Short: "Show what is in use, and what bounds it",
		Long: `Show how much the caller's key, its tenant and the server use, and what bounds them. How much the whole server uses is
shown to its own user and to operators.`,
		Example: "  recluse usage\n  recluse usage --json",
		Args:    cobra.NoArgs,
		RunE: a.served(func(ctx context.Context, c *client.Client, _ []string) error {
			u, err := c.Usage(ctx)
			if err != nil {
				return err
			}
			rows := [][]string{{"WHOSE", "WHAT", "USED", "BOUND"}}
			rows = append(rows, usageRows("server", u.Server)...)
			rows = append(rows, usageRows("tenant "+u.Tenant.Name, u.Tenant)...)
			if u.Key != nil {
				rows = append(rows, usageRows("key "+u.Key.Name, *u.Key)...)
			}
			return a.resultTable(u, rows)
		}),
	}
}

// usageRows returns a line for each bound that is set or of which something is in use.
func usageRows(whose string, u v1.QuotaUse) (rows [][]string) {
	used := v1.Quota{}
	if u.Used != nil {
		used = *u.Used
	}
	have := used.Fields()
	for i, bound := range u.Bounds.Fields() {
		row := []string{whose, bound.Name, "-", "none"}
		if have[i].IsSet() {
			row[2] = have[i].String()
		}
		if bound.IsSet() {
			row[3] = bound.String()
		}
		if row[3] != "none" || row[2] != "-" && row[2] != "0" {
			rows = append(rows, row)
		}
	}
	return rows
}
