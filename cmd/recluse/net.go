package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/sandbox"
)

func (a *app) netCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "net",
		Short: "Show, change and explain the network policy of sessions",
		Long: `Show, change and explain the network policy of sessions.

The policy decides about the connections of code in a session. It can change while the
session lives. Connections that a new policy does not allow are closed.`,
		Example: `  recluse net set work --net packages
  recluse net set work --add --allow api.github.com
  recluse net check --session work https://example.com/x
  recluse net log work --follow`,
	}
	c.AddCommand(a.netShowCommand(), a.netSetCommand(), a.netCheckCommand(), a.netLogCommand())
	return c
}

// registerNetwork declares the flags of a network policy.
func registerNetwork(f *pflag.FlagSet, n *v1.Network) {
	for _, o := range optionsOf(n) {
		o.register(f, groupNetwork)
	}
}

// networkGiven reports whether a flag of the network policy was given.
func networkGiven(f *pflag.FlagSet) bool {
	return f.Changed("net") || f.Changed("allow") || f.Changed("deny")
}

func (a *app) netShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "show NAME",
		Short:             "Show the network policy of a session",
		Long:              "Show the network policy of a session: its rules in order, the preset, and its generation.",
		Example:           "  recluse net show work\n  recluse net show work --json",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.sessionFirst,
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			n, err := c.Session(args[0]).Network(ctx)
			if err != nil {
				return err
			}
			return a.printNetwork(n)
		}),
	}
}

func (a *app) printNetwork(n v1.SessionNetwork) error {
	lines := ""
	for _, r := range n.Rules {
		lines += string(r) + "\n"
	}
	return a.result(n, "%spreset %s\ngeneration %d\n", lines, cmp.Or(n.Preset, v1.NetworkNone), n.Generation)
}

func (a *app) netSetCommand() *cobra.Command {
	var (
		n   v1.SessionNetwork
		add bool
	)
	c := &cobra.Command{
		Use:   "set NAME",
		Short: "Change the network policy of a session",
		Long: `Change the network policy of a session.

The flags are the whole new policy, which replaces the present one. With --add, their
rules are put before the present ones, and the preset stays unless --net is given.
Connections that the new policy does not allow are closed. A hibernated session is not
woken.`,
		Example: `  recluse net set work --net packages
  recluse net set work --allow api.github.com --allow '*.example.com:8443'
  recluse net set work --add --allow db.example.com:5432
  recluse net set work --net none`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.sessionFirst,
		PreRunE: func(c *cobra.Command, _ []string) error {
			if !networkGiven(c.Flags()) {
				return usage("give --net, --allow or --deny; --net none allows nothing")
			}
			if add && n.Generation != 0 {
				return usage("--add and --generation exclude each other: --add changes the policy that it finds")
			}
			return nil
		},
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			s, next := c.Session(args[0]), n
			if add {
				present, err := s.Network(ctx)
				if err != nil {
					return err
				}
				next.Preset = cmp.Or(n.Preset, present.Preset)
				next.Rules = append(next.Rules[:len(next.Rules):len(next.Rules)], present.Rules...)
				next.Generation = present.Generation
			}
			changed, err := s.SetNetwork(ctx, next)
			if err != nil {
				return err
			}
			return a.printNetwork(changed)
		}),
	}
	f := c.Flags()
	f.BoolVar(&add, "add", false, "put the rules before those of the present policy")
	f.Uint64Var(&n.Generation, "generation", 0, "change the policy only if it has this `number`, which net show prints")
	registerNetwork(f, &n.Network)
	return c
}

func (a *app) netCheckCommand() *cobra.Command {
	var (
		n       v1.Network
		session string
	)
	c := &cobra.Command{
		Use:   "check DESTINATION",
		Short: "Show what a network policy decides about a destination",
		Long: `Show what a network policy decides about a destination, and which rule decides.

DESTINATION is a name or an address, with or without a port, or a URL. Nothing is opened
or resolved, so a name that is allowed can still lead to an address that is denied. The
policy is that of the session, or that of the flags and of this machine's configuration.

Exit status: 0 if the destination is allowed, 1 if not.`,
		Example: `  recluse net check --session work https://example.com/x
  recluse net check --net packages pypi.org
  recluse net check --allow '*.example.com' api.example.com:8443`,
		Args: cobra.ExactArgs(1),
		PreRunE: func(c *cobra.Command, _ []string) error {
			if session != "" && networkGiven(c.Flags()) {
				return usage("--session has a policy of its own; leave out --net, --allow and --deny, or --session")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if session == "" {
				d, err := a.netDecide(n, args[0])
				if err != nil {
					return err
				}
				return a.printDecided(d)
			}
			return a.withServer(c.Context(), func(ctx context.Context, c *client.Client) error {
				d, err := c.Session(session).CheckNetwork(ctx, args[0])
				if err != nil {
					return err
				}
				return a.printDecided(d)
			})
		},
	}
	f := c.Flags()
	f.StringVar(&session, "session", "", "check the policy of the session of this `name`")
	registerNetwork(f, &n)
	a.completeSession(c, "session")
	return c
}

// netDecide decides by the configuration of this machine.
func (a *app) netDecide(n v1.Network, destination string) (v1.NetworkDecision, error) {
	if remote, err := a.hasRemoteServer(); err != nil || remote {
		if remote {
			err = usage("give --session: the server of client.url has a configuration of its own")
		}
		return v1.NetworkDecision{}, err
	}
	o, err := a.cfg.Network.Options()
	if err != nil {
		return v1.NetworkDecision{}, err
	}
	return sandbox.DecideNetwork(n, o, destination)
}

func (a *app) printDecided(d v1.NetworkDecision) error {
	text := fmt.Sprintf("%s: %s", d.Action, d.Reason)
	if d.Remedy != "" {
		text += " (" + d.Remedy + ")"
	}
	if err := a.result(d, "%s\n", console.OneLine(text)); err != nil {
		return err
	}
	if d.Action != v1.NetworkAllow {
		return exit(1)
	}
	return nil
}

func (a *app) netLogCommand() *cobra.Command {
	var o v1.NetworkLogOptions
	c := &cobra.Command{
		Use:   "log NAME",
		Short: "Print the latest connections of a session",
		Long: `Print the latest connections of a session, and what was denied, oldest first.

Denials that are alike share a line. The log is kept in the memory of the server; recluse
audit also has earlier decisions. With --json, each entry is one line.`,
		Example:           "  recluse net log work\n  recluse net log work --follow --json",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.sessionFirst,
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			for e, err := range c.Session(args[0]).NetworkLog(ctx, o) {
				if err != nil {
					return untilSignal(ctx, err)
				}
				if a.json {
					err = console.WriteLine(a.stdout, e)
				} else {
					_, err = fmt.Fprintln(a.stdout, networkLine(&e))
				}
				if err != nil {
					return err
				}
			}
			return nil
		}),
	}
	c.Flags().BoolVarP(&o.Follow, "follow", "f", false, "continue to print connections as they happen")
	c.Flags().Int64Var(&o.After, "after", 0, "`number` of the entry after which to start, which --json prints")
	return c
}

// networkLine returns an entry of the network log as a line of text.
func networkLine(e *v1.NetworkEvent) string {
	parts := []string{e.Time.Local().Format(time.DateTime), fmt.Sprintf("%-6s", e.Kind), e.Destination()}
	if e.Count > 1 {
		parts = append(parts, fmt.Sprintf("%d times", e.Count))
	}
	if e.Kind == v1.NetworkEventClosed {
		parts = append(parts, fmt.Sprintf("sent %s, received %s", console.Bytes(e.Sent), console.Bytes(e.Received)))
	}
	if e.Op != "" {
		parts = append(parts, "op="+e.Op)
	}
	if e.Program != "" {
		parts = append(parts, "program="+e.Program)
	}
	switch {
	case e.Reason != "":
		parts = append(parts, e.Reason)
	case e.Rule != "" && e.Kind == v1.NetworkEventOpened:
		parts = append(parts, fmt.Sprintf("by %q", e.Rule))
	}
	return console.OneLine(strings.Join(parts, " "))
}
