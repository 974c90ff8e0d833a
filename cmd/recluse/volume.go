package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/console"
)

func (a *app) volumeCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "volume",
		Short: "Create, list, show and delete volumes",
		Long: `Create, list, show and delete volumes: files that outlive sessions.

Sessions and commands mount a volume with --volume NAME:PATH, read-only, or writable with
NAME:PATH:rw. One at a time may write to it, and any number may read. recluse cp copies
files to and from volume:NAME/PATH without a session.`,
		Example: `  recluse volume create data --size 5g
  recluse cp big.csv volume:data/
  recluse exec --volume data:/data -- wc -l /data/big.csv
  recluse volume delete data`,
	}
	c.AddCommand(a.volumeCreateCommand(), a.volumeListCommand(), a.volumeShowCommand(), a.volumeDeleteCommand())
	return c
}

func (a *app) volumeCreateCommand() *cobra.Command {
	var v v1.NewVolume
	c := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a volume",
		Long: `Create a volume.

It takes space on the disk as files are written. The size and the number of files are
enforced: a write beyond them fails. Where they cannot be, the volume is refused, unless
the operator has set backend.unlimited_disk; then recluse volume show reports
disk_limit: false.`,
		Example: "  recluse volume create data --size 5g\n  recluse volume create cache --size 20g --shared",
		Args:    cobra.ExactArgs(1),
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			v.Name = args[0]
			made, err := c.CreateVolume(ctx, v)
			if err != nil {
				return err
			}
			if !made.DiskLimit {
				a.notice("warning: the size of volume %s is not limited", made.Name)
			}
			return a.result(made, "%s  %s\n", made.Name, volumeSize(made))
		}),
	}
	f := c.Flags()
	f.Var(valueOf(&v.Size), "size", "`size` of all files together (default 10 GiB)")
	f.Int64Var(&v.Files, "files", 0, "maximum `number` of files and directories (default one per 16 KiB of the size)")
	f.BoolVar(&v.Shared, "shared", false, "let several sandboxes write at the same time")
	f.StringVar(&v.Backend, "backend", "", "`backend` whose sandboxes use it (default that of new sessions)")
	return c
}

func (a *app) volumeListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List volumes",
		Example: "  recluse volume list\n  recluse volume list --json",
		Args:    cobra.NoArgs,
		RunE: a.served(func(ctx context.Context, c *client.Client, _ []string) error {
			list, err := c.Volumes(ctx)
			if err != nil {
				return err
			}
			rows := [][]string{{"VOLUME", "SIZE", "ON DISK", "BACKEND", "AGE", "USED BY"}}
			for _, v := range list {
				rows = append(rows, []string{
					v.Name, volumeSize(v), volumeDisk(v), cmp.Or(v.Backend, "-"), volumeAge(v), strings.Join(volumeUsers(v), ", "),
				})
			}
			return a.resultTable(list, rows)
		}),
	}
}

func volumeSize(v v1.VolumeInfo) string {
	if v.Unreadable {
		return "unreadable"
	}
	if !v.DiskLimit {
		return "unlimited"
	}
	return v1.SizeText(v.Size)
}

func volumeAge(v v1.VolumeInfo) string {
	if v.Unreadable {
		return "-"
	}
	return console.Ago(v.Created)
}

func volumeDisk(v v1.VolumeInfo) string {
	if v.Disk == nil {
		return "-"
	}
	return console.Bytes(*v.Disk)
}

// volumeUsers describes the uses of a volume.
func volumeUsers(v v1.VolumeInfo) []string {
	var out []string
	for _, u := range v.Uses {
		who := "sandbox " + u.Sandbox
		if u.Session != "" {
			who = u.Session
		}
		if u.Writable {
			who += " (rw)"
		}
		out = append(out, who)
	}
	if out == nil {
		out = []string{"-"}
	}
	return out
}

func (a *app) volumeShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "show NAME",
		Short:             "Show a volume, and the sessions that use it",
		Example:           "  recluse volume show data",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.volumeFirst,
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			v, err := c.Volume(ctx, args[0])
			if err != nil {
				return err
			}
			if v.Unreadable {
				return a.resultTable(v, [][]string{
					{"volume", v.Name},
					{"state", "unreadable: its record is damaged; recluse volume delete removes it"},
					{"on disk", volumeDisk(v)},
					{"used by", strings.Join(volumeUsers(v), ", ")},
				})
			}
			writers := "one at a time"
			if v.Shared {
				writers = "any number"
			}
			rows := [][]string{
				{"volume", v.Name},
				{"backend", v.Backend},
				{"size", volumeSize(v)},
				{"files", fmt.Sprint(v.Files)},
				{"on disk", volumeDisk(v)},
				{"writers", writers},
				{"created", console.Ago(v.Created) + " ago"},
				{"used by", strings.Join(volumeUsers(v), ", ")},
			}
			return a.resultTable(v, rows)
		}),
	}
}

func (a *app) volumeDeleteCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "delete NAME...",
		Short: "Delete volumes with their files",
		Long: `Delete volumes with their files.

A volume that a session uses is not deleted, also if the session is hibernated. Snapshots
that were taken with the volume can no longer be restored.`,
		Example:           "  recluse volume delete data",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.volumeFirst,
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			for _, name := range args {
				if err := c.DeleteVolume(ctx, name); err != nil {
					return err
				}
			}
			return a.result(map[string][]string{"deleted": args}, "")
		}),
	}
}

// volumeFirst completes the names of volumes.
func (a *app) volumeFirst(c *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
	return a.complete(c.Context(), word, func(ctx context.Context, c *client.Client) ([]string, error) {
		list, err := c.Volumes(ctx)
		var names []string
		for _, v := range list {
			names = append(names, v.Name+"\t"+volumeSize(v))
		}
		return names, err
	})
}
