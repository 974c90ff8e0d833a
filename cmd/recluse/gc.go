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
		Short: "Remove expired sessions, unused data and stray sandboxes",
		Long: `Remove expired sessions, unused data and stray sandboxes.

It removes expired sessions and log entries, data of deleted snapshots, and sandboxes
without a session or whose store is lost (recluse sandbox list --strays lists those). A
server does the same regularly. If no server runs for long, use cron.`,
		Example: "  recluse gc\n  0 4 * * * recluse gc --json >> /var/log/recluse-gc.json", Args: cobra.NoArgs,
		RunE: a.served(func(ctx context.Context, c *client.Client, _ []string) error {
			got, err := c.GC(ctx)
			if err != nil {
				return err
			}
			return a.result(
				got,
				"removed %s, %s (%s), %s, %s, %s\n",
				console.Plural(got.Sessions, "session", "sessions"),
				console.Plural(got.Snapshots, "snapshot", "snapshots"),
				console.Bytes(
					got.Bytes,
				),
				console.Plural(got.Strays, "stray", "strays"),
				console.Plural(got.Volumes, "incomplete volume", "incomplete volumes"),
				console.Plural(got.Entries, "log entry", "log entries"),
			)
		}),
	}
}
