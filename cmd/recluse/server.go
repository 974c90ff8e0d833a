package main

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/internal/daemon"
)

func (a *app) serverCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "server",
		Short: "Show or stop your server",
		Long: `Show or stop your server.

Sessions need a small server in the background. The first command that needs it starts it,
a newer recluse replaces it, and it exits when no session is left. Normally you need not
care about it.`,
		Example: "  recluse server status\n  recluse server stop",
	}
	c.AddCommand(
		&cobra.Command{
			Use:   "status",
			Short: "Show whether a server runs, since when, and where",
			Long: `Show whether a server runs, since when, and where.

This does not start a server. The exit status is 1 if no server runs.`,
			Example: "  recluse server status\n  recluse server status --json",
			Args:    cobra.NoArgs,
			RunE:    a.serverStatus,
		},
		&cobra.Command{
			Use:   "stop",
			Short: "Stop the server; sessions stay",
			Long: `Stop the server; sessions stay.

This also stops a server started with recluse serve. What runs in sessions continues, and
the next server takes the sessions over.`,
			Example: "  recluse server stop",
			Args:    cobra.NoArgs,
			RunE:    a.serverStop,
		},
	)
	return c
}

func (a *app) serverStatus(c *cobra.Command, _ []string) error {
	p, err := a.place()
	if err != nil {
		return err
	}
	held, err := p.Find(c.Context())
	if err != nil {
		err := a.result(map[string]any{"running": false, "log": p.Log()},
			"no server is running; the next command that needs one starts it\n")
		if err != nil {
			return err
		}
		return exit(1)
	}
	defer held.Close()
	s := held.Status
	s.Callers-- // do not count this process
	if a.json {
		return console.WriteJSON(a.stdout, struct {
			Running bool `json:"running"`
			daemon.Status
			Log string `json:"log"`
		}{true, s, p.Log()})
	}
	how := "by recluse serve"
	if s.Background {
		how = "in the background"
	}
	rows := [][]string{
		{"pid", fmt.Sprint(s.PID)},
		{"started", s.Started.Local().Format(time.DateTime) + " (" + console.Ago(s.Started) + " ago), " + how},
		{"version", s.Stamp.Version},
		{"socket", s.Socket},
		{"listen", cmp.Or(s.Listen, "-")},
		{"data", s.Data},
		{"callers", fmt.Sprint(s.Callers)},
	}
	if s.Background {
		rows = append(rows, []string{"log", p.Log()})
	}
	return console.Table(a.stdout, rows)
}

func (a *app) serverStop(c *cobra.Command, _ []string) error {
	p, err := a.place()
	if err != nil {
		return err
	}
	ctx := a.watch(c.Context())
	if err := p.Stop(ctx); err != nil {
		return cause(ctx, err)
	}
	return a.result(map[string]bool{"running": false}, "")
}
