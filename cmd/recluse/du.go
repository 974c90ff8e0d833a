package main

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/console"
)

func (a *app) duCommand() *cobra.Command {
	all := false
	c := &cobra.Command{
		Use:   "du",
		Short: "Show what takes space on disk",
		Long: `Show what takes space on disk: sandboxes, snapshots, volumes, templates, images, caches,
logs.

What several of them share, such as the blocks of a fork on XFS or btrfs, counts for each.
recluse gc removes what nothing needs.`,
		Example: "  recluse du\n  recluse du --all\n  recluse du --json",
		Args:    cobra.NoArgs,
		RunE: a.served(func(ctx context.Context, c *client.Client, _ []string) error {
			r, err := c.DiskReport(ctx)
			if err != nil {
				return err
			}
			rows := [][]string{{"KIND", "COUNT", "SIZE"}}
			if all {
				rows = [][]string{{"KIND", "NAME", "BACKEND", "SESSION", "SIZE"}}
				for _, u := range r.Uses {
					rows = append(rows, []string{
						string(u.Kind), u.Name, cmp.Or(u.Backend, "-"), cmp.Or(u.Session, "-"), console.Bytes(u.Bytes),
					})
				}
			} else {
				rows = append(rows, diskSums(r.Uses)...)
			}
			if err := a.resultTable(r, rows); err != nil {
				return err
			}
			if r.Total > 0 {
				a.notice("%s of %s free in %s", console.Bytes(r.Free), console.Bytes(r.Total), r.Dir)
			}
			if r.Low {
				a.notice("warning: little space is left; recluse gc removes what nothing needs")
			}
			return nil
		}),
	}
	c.Flags().BoolVarP(&all, "all", "a", false, "list each sandbox, snapshot, volume and file")
	return c
}

// diskSums returns a row for each kind, the largest first.
func diskSums(uses []v1.DiskUse) (rows [][]string) {
	type sum struct {
		kind  v1.DiskKind
		count int
		bytes int64
	}
	var sums []sum
	for _, u := range uses {
		i := slices.IndexFunc(sums, func(s sum) bool { return s.kind == u.Kind })
		if i < 0 {
			i = len(sums)
			sums = append(sums, sum{kind: u.Kind})
		}
		sums[i].count++
		sums[i].bytes += u.Bytes
	}
	slices.SortStableFunc(sums, func(x, y sum) int { return cmp.Compare(y.bytes, x.bytes) })
	for _, s := range sums {
		rows = append(rows, []string{string(s.kind), strconv.Itoa(s.count), console.Bytes(s.bytes)})
	}
	return rows
}
