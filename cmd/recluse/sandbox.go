package main

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/internal/xdg"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

func (a *app) sandboxCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "sandbox",
		Short: "List the sandboxes on this machine, or end strays",
		Long: `List the sandboxes on this machine, or end strays.

The list has your sandboxes on this machine and all sandboxes on its Docker engine, also
those of other users. This needs no server. To end a session, use recluse session end.

The column USE shows whether a sandbox is still in use:
  held     a running program made it or is attached to it
  kept     its server is stopped, and will use it again when it starts
  stray    its program has ended, and its store was removed or replaced
  unknown  its program has ended; no readable store shows whether it is needed`,
		Example: "  recluse sandbox list\n  recluse sandbox end --strays",
	}
	c.AddCommand(a.sandboxListCommand(), a.sandboxEndCommand())
	return c
}

// onSandboxes returns the body of a verb that works on the sandboxes of the host. failed is the error of backends that
// could not be queried, or nil.
func (a *app) onSandboxes(
	f func(ctx context.Context, backends []sandbox.Backend, all []v1.HostSandbox, failed error) error,
) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, _ []string) error {
		ctx := a.watch(c.Context())
		data, err := xdg.Data()
		if err != nil {
			return err
		}
		backends := a.backends(ctx)
		all, err := session.Survey(ctx, backends, data)
		return cause(ctx, f(ctx, backends, all, err))
	}
}

func (a *app) sandboxListCommand() *cobra.Command {
	var strays bool
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List sandboxes and whether they are in use",
		Long:    "List sandboxes and whether they are in use.\n\n--json prints long paths of stores in full.",
		Example: "  recluse sandbox list\n  recluse sandbox list --strays --json",
		Args:    cobra.NoArgs,
		RunE: a.onSandboxes(func(_ context.Context, _ []sandbox.Backend, all []v1.HostSandbox, failed error) error {
			if strays {
				all = slices.DeleteFunc(all, func(s v1.HostSandbox) bool { return s.Use != v1.SandboxStray })
			}
			return withResult(a.resultTable(all, sandboxRows(all)), failed)
		}),
	}
	c.Flags().BoolVar(&strays, "strays", false, "list only strays")
	return c
}

func sandboxRows(all []v1.HostSandbox) [][]string {
	rows := [][]string{{"ID", "BACKEND", "USE", "AGE", "OWNER", "SESSION", "STORE"}}
	for _, s := range all {
		owner := "-"
		if s.Owner > 0 {
			owner = strconv.Itoa(s.Owner)
		}
		rows = append(rows, []string{
			s.ID,
			s.Backend,
			string(s.Use),
			console.Ago(s.Created),
			owner,
			cmp.Or(s.Session, "-"),
			cmp.Or(s.Store, "-"),
		})
	}
	return rows
}

func (a *app) sandboxEndCommand() *cobra.Command {
	var strays, force bool
	c := &cobra.Command{
		Use:   "end [ID...]",
		Short: "End sandboxes by id, or all strays",
		Long: `End sandboxes by id, or all strays.

A sandbox that a running program holds is never ended. A sandbox that is kept for a
stopped server, or whose use is unknown, is ended only with --force. Its session is then
lost.`,
		Example: "  recluse sandbox end --strays\n  recluse sandbox end s0123456789ab",
		RunE: func(c *cobra.Command, args []string) error {
			if strays == (len(args) > 0) {
				return usage("give ids of sandboxes, or --strays")
			}
			return a.onSandboxes(
				func(ctx context.Context, backends []sandbox.Backend, all []v1.HostSandbox, failed error) error {
					return a.endSandboxes(ctx, backends, all, failed, args, force)
				},
			)(
				c,
				args,
			)
		},
	}
	c.Flags().BoolVar(&strays, "strays", false, "end all strays")
	c.Flags().BoolVar(&force, "force", false, "also end sandboxes whose use is kept or unknown")
	return c
}

// endSandboxes ends the named sandboxes, or all strays if names is empty.
func (a *app) endSandboxes(
	ctx context.Context,
	backends []sandbox.Backend,
	all []v1.HostSandbox,
	failed error,
	names []string,
	force bool,
) error {
	errs := []error{failed}
	doomed := []v1.HostSandbox{}
	for _, s := range all {
		if len(names) == 0 && s.Use == v1.SandboxStray {
			doomed = append(doomed, s)
		}
	}
	for _, name := range names {
		i := slices.IndexFunc(all, func(s v1.HostSandbox) bool { return s.ID == name })
		switch {
		case i < 0:
			errs = append(errs, &v1.Error{
				Code:    v1.CodeNotFound,
				Op:      "end sandbox",
				Message: "sandbox " + strconv.Quote(name) + " not found",
				Remedy:  "list sandboxes with recluse sandbox list",
			})
		case all[i].Use == v1.SandboxKept && !force:
			errs = append(errs, &v1.Error{
				Code:    v1.CodeBusy,
				Op:      "end sandbox",
				Message: name + " is kept for the server of " + all[i].Store,
				Remedy:  "end its session (recluse session end), or use --force",
			})
		case all[i].Use == v1.SandboxUnknown && !force:
			errs = append(errs, &v1.Error{
				Code:    v1.CodeBusy,
				Op:      "end sandbox",
				Message: "no readable store shows whether " + name + " is needed",
				Remedy:  "use --force if it is not",
			})
		default:
			doomed = append(doomed, all[i])
		}
	}
	ended := []string{}
	for _, s := range doomed {
		if err := session.EndSandbox(ctx, backends, s); err != nil {
			errs = append(errs, err)
			continue
		}
		ended = append(ended, s.ID)
	}
	return a.printEnded(ended, errs, "ended %s\n", console.Plural(len(ended), "sandbox", "sandboxes"))
}
