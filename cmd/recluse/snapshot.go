package main

import (
	"cmp"
	"context"
	"fmt"
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
		Long: `A snapshot holds a session as it is at one moment: memory, variables, processes and files. It is named SESSION@NAME.
It stays when its session ends.`,
		Example: `  recluse snapshot save work warm
  recluse snapshot restore work@warm
  recluse snapshot list work
  recluse snapshot delete work@warm`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(a.snapshotSaveCommand(), a.snapshotRestoreCommand(), a.snapshotListCommand(), a.snapshotDeleteCommand())
	return c
}

// reference reads SESSION@NAME.
func reference(arg string) (name, snapshot string, err error) {
	name, snapshot, ok := strings.Cut(arg, "@")
	if !ok || name == "" || snapshot == "" || strings.Contains(snapshot, "@") {
		return "", "", usage("%q does not name a snapshot: want SESSION@NAME", arg)
	}
	return name, snapshot, nil
}

func (a *app) snapshotSaveCommand() *cobra.Command {
	return &cobra.Command{
		Use: "save SESSION NAME", Short: "Take a snapshot of a session, which goes on", Example: "  recluse snapshot save work warm", Args: cobra.ExactArgs(2), ValidArgsFunction: a.sessionFirst,
		RunE: func(c *cobra.Command, args []string) error {
			ctx, w := a.watch(c.Context())
			defer w.stop()
			s, _, done, err := a.session(ctx, args[0])
			if err != nil {
				return cause(ctx, err)
			}
			defer done()
			snap, err := s.Save(ctx, args[1])
			if err != nil {
				return cause(ctx, err)
			}
			if a.json {
				return console.WriteJSON(a.stdout, snap)
			}
			fmt.Fprintf(a.stdout, "%s@%s  %s\n", snap.Session, snap.Name, console.Bytes(snap.Size))
			return nil
		},
	}
}

func (a *app) snapshotRestoreCommand() *cobra.Command {
	var into string
	c := &cobra.Command{
		Use:   "restore SESSION@NAME",
		Short: "Put a session back to a snapshot, or make another from it",
		Long: `Put a session back to one of its snapshots: what happened since is lost. With --as the snapshot becomes a new session and the
old one stays as it is; so does a snapshot whose session has ended, under the session's own name.`,
		Example: "  recluse snapshot restore work@warm\n  recluse snapshot restore work@warm --as attempt-2", Args: cobra.ExactArgs(1), ValidArgsFunction: a.snapshotFirst,
		RunE: func(c *cobra.Command, args []string) error { return a.snapshotRestore(c.Context(), args[0], into) },
	}
	c.Flags().StringVar(&into, "as", "", "make a new session of this `name`")
	return c
}

func (a *app) snapshotRestore(ctx context.Context, ref, into string) error {
	name, snapshot, err := reference(ref)
	if err != nil {
		return err
	}
	ctx, w := a.watch(ctx)
	defer w.stop()
	c, done, err := a.connect(ctx)
	if err != nil {
		return cause(ctx, err)
	}
	defer done()
	if into == "" {
		s, _, err := c.Get(ctx, name)
		switch {
		case err == nil:
			if err := s.Restore(ctx, snapshot); err != nil {
				return cause(ctx, err)
			}
			info, err := s.Info(ctx)
			if err != nil {
				return cause(ctx, err)
			}
			return a.printRestored(info, ref)
		case !gone(err):
			return cause(ctx, err)
		}
		into = name
	}
	_, opened, err := c.Open(ctx, into, session.OpenOptions{Settings: session.Settings{From: ref}, New: true})
	if err != nil {
		return cause(ctx, err)
	}
	return a.printRestored(opened.Session, ref)
}

func (a *app) printRestored(i session.Info, ref string) error {
	if a.json {
		return console.WriteJSON(a.stdout, i)
	}
	fmt.Fprintf(a.stdout, "%s is as in %s\n", i.Key.Name, ref)
	return nil
}

func (a *app) snapshotListCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list [SESSION]", Aliases: []string{"ls"}, Short: "List the snapshots of a session, or all", Example: "  recluse snapshot list work\n  recluse snapshot list", Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: a.sessionFirst,
		RunE: func(c *cobra.Command, args []string) error {
			cl, done, err := a.connect(c.Context())
			if err != nil {
				return err
			}
			defer done()
			name := ""
			if len(args) > 0 {
				name = args[0]
			}
			list, err := cl.Snapshots(c.Context(), name)
			if err != nil {
				return err
			}
			if a.json {
				return console.WriteJSON(a.stdout, append([]session.Snapshot{}, list...))
			}
			rows := [][]string{{"SNAPSHOT", "SIZE", "AGE", "PARENT", "HOLDS"}}
			for _, s := range list {
				holds := "files"
				if s.Memory {
					holds = "files and memory"
				}
				rows = append(rows, []string{s.Session + "@" + s.Name, console.Bytes(s.Size), console.Ago(s.Created), cmp.Or(s.Parent, "-"), holds})
			}
			return console.Table(a.stdout, rows)
		},
	}
}

func (a *app) snapshotDeleteCommand() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:     "delete SESSION@NAME... | SESSION --all",
		Short:   "Delete snapshots",
		Long:    "Delete snapshots. Their data goes when nothing needs it any more: sessions that were made from them go on.",
		Example: "  recluse snapshot delete work@warm\n  recluse snapshot delete work --all", Args: cobra.MinimumNArgs(1), ValidArgsFunction: a.snapshotFirst,
		RunE: func(c *cobra.Command, args []string) error { return a.snapshotDelete(c.Context(), args, all) },
	}
	c.Flags().BoolVar(&all, "all", false, "all of the session")
	return c
}

func (a *app) snapshotDelete(ctx context.Context, args []string, all bool) error {
	type target struct{ session, name string }
	var targets []target
	for _, arg := range args {
		if all {
			if strings.Contains(arg, "@") {
				return usage("%s: with --all name only the session", arg)
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
	c, done, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	for _, t := range targets {
		if err := c.DeleteSnapshot(ctx, t.session, t.name); err != nil {
			return err
		}
	}
	if a.json {
		return console.WriteJSON(a.stdout, map[string][]string{"deleted": args})
	}
	return nil
}

// snapshotFirst completes SESSION@NAME.
func (a *app) snapshotFirst(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	a.look(c.Context(), func(ctx context.Context, cl *client.Client) {
		list, err := cl.Snapshots(ctx, "")
		if err != nil {
			return
		}
		for _, s := range list {
			if ref := s.Session + "@" + s.Name; strings.HasPrefix(ref, word) {
				out = append(out, ref)
			}
		}
	})
	return out, cobra.ShellCompDirectiveNoFileComp
}
