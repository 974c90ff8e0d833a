package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/recluse-dev/recluse/internal/console"
)

// collected is what was removed, as JSON.
type collected struct {
	Sessions  int   `json:"sessions"`
	Snapshots int   `json:"snapshots"`
	Strays    int   `json:"strays"`
	Entries   int   `json:"entries"`
	Bytes     int64 `json:"bytes"`
}

func (a *app) gcCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "gc",
		Short: "Remove what nothing needs any more",
		Long: `Remove what nothing needs any more: sessions and log entries past their time, data of snapshots that nobody names, sandboxes that
belong to no session. A server does the same from time to time; where none runs for long, cron can.`,
		Example: "  recluse gc\n  0 4 * * * recluse gc --json >> /var/log/recluse-gc.json", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.gc(c.Context()) },
	}
}

func (a *app) gc(ctx context.Context) error {
	ctx, w := a.watch(ctx)
	defer w.stop()
	c, done, err := a.connect(ctx)
	if err != nil {
		return cause(ctx, err)
	}
	defer done()
	got, err := c.GC(ctx)
	if err != nil {
		return cause(ctx, err)
	}
	if a.json {
		return console.WriteJSON(a.stdout, collected(got))
	}
	fmt.Fprintf(a.stdout, "removed %s, %s (%s), %s, %s\n", console.Plural(got.Sessions, "session", "sessions"), console.Plural(got.Snapshots, "snapshot", "snapshots"),
		console.Bytes(got.Bytes), console.Plural(got.Strays, "stray", "strays"), console.Plural(got.Entries, "log entry", "log entries"))
	return nil
}
