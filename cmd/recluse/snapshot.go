package main

import (
	"cmp"
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/session"
)

func (a *app) snapshotCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "snapshot",
		Short: "Save, restore, list and delete snapshots of sessions",
		Long: `Save, restore, list and delete snapshots of sessions.

A snapshot is a copy of a session at one moment: memory, Python variables, processes and
files. It is named SESSION@NAME, and stays when the session ends.`,
		Example: `  recluse snapshot save work warm
  recluse snapshot restore work@warm
  recluse snapshot list work
  recluse snapshot delete work@warm`,
	}
	c.AddCommand(
		a.snapshotSaveCommand(), a.snapshotRestoreCommand(), a.snapshotListCommand(), a.snapshotDeleteCommand(),
	)
	return c
}

// reference splits SESSION@NAME.
func reference(arg string) (name, snapshot string, err error) {
	name, snapshot, ok := strings.Cut(arg, "@")
	if !ok || name == "" || snapshot == "" || strings.Contains(snapshot, "@") {
		return "", "", usage("invalid snapshot %q: want SESSION@NAME", arg)
	}
	return name, snapshot, nil
}

func (a *app) snapshotSaveCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "save SESSION NAME",
		Short:             "Take a snapshot of a session, which continues",
		Example:           "  recluse snapshot save work warm",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: a.sessionFirst,
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			s := c.Session(args[0])
			done := a.saving("saving", s)
			snap, err := s.Save(ctx, args[1])
			done()
			if err != nil {
				return err
			}
			return a.result(snap, "%s@%s  %s\n", snap.Session, snap.Name, console.Bytes(snap.Size))
		}),
	}
}

func (a *app) snapshotRestoreCommand() *cobra.Command {
	var into string
	c := &cobra.Command{
		Use:   "restore SESSION@NAME",
		Short: "Restore a session from a snapshot, or create a new one from it",
		Long: `Restore a session from a snapshot, or create a new one from it.

Without --as, the session goes back to the snapshot and loses what happened since. If the
session has ended, a new session with its name is created. With --as, a new session is
created from the snapshot, and the old one does not change.`,
		Example:           "  recluse snapshot restore work@warm\n  recluse snapshot restore work@warm --as attempt-2",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.snapshotFirst,
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			return a.snapshotRestore(ctx, c, args[0], into)
		}),
	}
	c.Flags().StringVar(&into, "as", "", "`name` of a new session to create from the snapshot")
	return c
}

func (a *app) snapshotRestore(ctx context.Context, c *client.Client, ref, into string) error {
	name, snapshot, err := reference(ref)
	if err != nil {
		return err
	}
	var i session.Info
	back := into == ""
	if back {
		s := c.Session(name)
		if err = s.Restore(ctx, snapshot); err == nil {
			i, err = s.Info(ctx)
		}
	}
	if !back || gone(err) {
		var opened session.Opened
		_, opened, err = c.Open(ctx, cmp.Or(into, name), session.OpenOptions{
			Settings: session.Settings{From: ref},
			New:      true,
		})
		i = opened.Session
		a.noticeOpened(opened)
	}
	if err != nil {
		return err
	}
	return a.result(i, "restored %s from %s\n", i.Key.Name, ref)
}

func (a *app) snapshotListCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "list [SESSION]",
		Aliases:           []string{"ls"},
		Short:             "List the snapshots of a session, or all",
		Example:           "  recluse snapshot list work\n  recluse snapshot list",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.sessionFirst,
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			list, err := c.Snapshots(ctx, strings.Join(args, ""))
			if err != nil {
				return err
			}
			return a.resultTable(append([]session.Snapshot{}, list...), snapshotRows(list))
		}),
	}
}

func snapshotRows(list []session.Snapshot) [][]string {
	rows := [][]string{{"SNAPSHOT", "SIZE", "AGE", "PARENT", "HOLDS"}}
	for _, s := range list {
		holds := "files"
		if s.Memory {
			holds = "files and memory"
		}
		rows = append(rows, []string{
			s.Session + "@" + s.Name, console.Bytes(s.Size), console.Ago(s.Created), cmp.Or(s.Parent, "-"), holds,
		})
	}
	return rows
}

func (a *app) snapshotDeleteCommand() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "delete SESSION@NAME... | SESSION --all",
		Short: "Delete snapshots",
		Long: `Delete snapshots.

Sessions made from them continue. Their data is removed when no session needs it.`,
		Example:           "  recluse snapshot delete work@warm\n  recluse snapshot delete work --all",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.snapshotFirst,
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			return a.snapshotDelete(ctx, c, args, all)
		}),
	}
	c.Flags().BoolVar(&all, "all", false, "delete all snapshots of the session")
	return c
}

func (a *app) snapshotDelete(ctx context.Context, c *client.Client, args []string, all bool) error {
	type target struct{ session, name string }
	var targets []target
	for _, arg := range args {
		if all {
			if strings.Contains(arg, "@") {
				return usage("%s: with --all, give only the name of the session", arg)
			}
			targets = append(targets, target{arg, "*"})
			continue
		}
		name, snapshot, err := reference(arg)
		if err != nil {
			return err
		}
		targets = append(targets, target{name, snapshot})
	}
	for _, t := range targets {
		if err := c.DeleteSnapshot(ctx, t.session, t.name); err != nil {
			return err
		}
	}
	return a.result(map[string][]string{"deleted": args}, "")
}
