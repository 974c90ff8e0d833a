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
		Short: "Show usage and quotas of the key, tenant and server",
		Long: `Show usage and quotas of the key, tenant and server.

The usage of the whole server is shown only to its own user and to operators.`,
		Example: "  recluse usage\n  recluse usage --json",
		Args:    cobra.NoArgs,
		RunE: a.served(func(ctx context.Context, c *client.Client, _ []string) error {
			u, err := c.Usage(ctx)
			if err != nil {
				return err
			}
			rows := [][]string{{"OWNER", "RESOURCE", "USED", "QUOTA"}}
			rows = append(rows, usageRows("server", u.Server)...)
			rows = append(rows, usageRows("tenant "+u.Tenant.Name, u.Tenant)...)
			if u.Key != nil {
				rows = append(rows, usageRows("key "+u.Key.Name, *u.Key)...)
			}
			return a.resultTable(u, rows)
		}),
	}
}

// usageRows returns a row for each resource that has a quota or is in use.
func usageRows(owner string, u v1.QuotaUse) (rows [][]string) {
	used := v1.Quota{}
	if u.Used != nil {
		used = *u.Used
	}
	have := used.Fields()
	for i, bound := range u.Bounds.Fields() {
		row := []string{owner, bound.Name, "-", "none"}
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
