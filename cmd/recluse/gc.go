package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/console"
)

func (a *app) gcCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "gc",
		Short: "Remove what nothing needs any more",
		Long: `Remove what nothing needs any more: sessions and log entries past their time, data of snapshots that nobody names, sandboxes that
belong to no session or whose store is lost (recluse sandbox list --strays shows those). A server does the same from time to time; where none runs for long, cron can.`,
		Example: "  recluse gc\n  0 4 * * * recluse gc --json >> /var/log/recluse-gc.json", Args: cobra.NoArgs,
		RunE: a.served(func(ctx context.Context, c *client.Client, _ []string) error {
			got, err := c.GC(ctx)
			if err != nil {
				return err
			}
			return a.result(got, "removed %s, %s (%s), %s, %s\n", console.Plural(got.Sessions, "session", "sessions"), console.Plural(got.Snapshots, "snapshot", "snapshots"),
				console.Bytes(got.Bytes), console.Plural(got.Strays, "stray", "strays"), console.Plural(got.Entries, "log entry", "log entries"))
		}),
	}
}
