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
		Short: "Say which server looks after your sessions, or end it",
		Long: `Sessions are looked after by a small server in the background. The first call that needs it starts it, a newer recluse replaces it,
and it ends by itself when nothing is left to look after. There is no need to do anything about it.`,
		Example: "  recluse server status\n  recluse server stop",
	}
	c.AddCommand(
		&cobra.Command{
			Use: "status", Short: "Say whether one runs, since when, and where", Example: "  recluse server status\n  recluse server status --json", Args: cobra.NoArgs,
			Long: "Say whether one runs, since when, and where. None is started by it; the exit status is 1 if there is none.",
			RunE: a.serverStatus,
		},
		&cobra.Command{
			Use: "stop", Short: "End it; sessions live on for the next one", Example: "  recluse server stop", Args: cobra.NoArgs,
			Long: "End the server, also one that was started by hand. Nothing that runs in a session is ended: the next server takes it over.",
			RunE: a.serverStop,
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
		if err := a.result(map[string]any{"running": false, "log": p.Log()}, "no server runs; the next call that needs one starts it\n"); err != nil {
			return err
		}
		return exit(1)
	}
	defer held.Close()
	s := held.Status
	s.Callers-- // not us
	if a.json {
		return console.WriteJSON(a.stdout, struct {
			Running bool `json:"running"`
			daemon.Status
			Log string `json:"log"`
		}{true, s, p.Log()})
	}
	how := "started by hand"
	if s.Background {
		how = "started by itself"
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
