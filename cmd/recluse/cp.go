package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/session"
)

func (a *app) cpCommand() *cobra.Command {
	var o client.CopyOptions
	c := &cobra.Command{
		Use:   "cp SOURCE... DESTINATION",
		Short: "Copy files and directories into a session, or out of it",
		Long: `Copy files and directories into a session, or out of it. SESSION:PATH names a file in a session; a relative
path begins in its working directory, which is the home directory by default. A file of this machine with a colon in its name is written ./name:with:colon.

As with cp, what is copied to a directory that is there goes into it, a file that is there is replaced unless
--no-clobber is given, and SOURCE/. means what is in a directory. Directories are copied as a whole. - stands for the input or the output.
--json lists each file that was copied: name at the source, path at the destination, size and SHA-256. Owners are not kept; nor are devices, pipes and sockets, and, on the way out, links that lead outside of what is copied.`,
		Example: `  recluse cp data.csv work:/home/user/
  recluse cp -r project work:
  recluse cp work:results ./results
  recluse cp work:report.txt -
  tar c . | recluse cp - work:src.tar`,
		Args: cobra.MinimumNArgs(2),
		ValidArgsFunction: func(c *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
			names, _ := a.complete(c.Context(), word, sessionNames)
			for i, n := range names {
				names[i] = strings.Replace(n, "\t", ":\t", 1)
			}
			return names, cobra.ShellCompDirectiveNoSpace
		},
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			return a.cp(ctx, c, args[:len(args)-1], args[len(args)-1], o)
		}),
	}
	c.Flags().BoolVarP(&o.NoClobber, "no-clobber", "n", false, "never replace a file")
	c.Flags().BoolP("recursive", "r", false, "accepted as in cp; directories are always copied as a whole")
	return c
}

// remotePath takes SESSION:PATH apart; ok is false for a file of this machine.
func remotePath(arg string) (name, file string, ok bool) {
	name, file, ok = strings.Cut(arg, ":")
	if !ok || name == "" || strings.ContainsAny(name, `/\`) {
		return "", "", false
	}
	return name, file, true
}

func (a *app) cp(ctx context.Context, c *client.Client, sources []string, to string, o client.CopyOptions) error {
	name, dst, in := remotePath(to)
	var remote []string
	for _, s := range sources {
		from, file, ok := remotePath(s)
		switch {
		case ok == in:
			return usage("one side must be a file of this machine, the other SESSION:PATH")
		case ok && name != "" && from != name:
			return usage("all sources must be in one session")
		case ok:
			name, remote = from, append(remote, file)
		}
	}
	// What is copied into a session makes it; what is copied out of it must be there.
	s, opened, err := c.Open(ctx, name, a.withLimits(session.OpenOptions{Existing: !in}))
	if err != nil {
		return err
	}
	a.sayOpened(opened)
	o.Stdin, o.Stdout = a.stdin, a.stdout
	var copied *client.Copied
	if in {
		copied, err = s.CopyIn(ctx, sources, dst, o)
	} else {
		copied, err = s.CopyOut(ctx, remote, to, o)
	}
	if err != nil || to == "-" {
		return err
	}
	if a.json {
		return console.WriteJSON(a.stdout, copied)
	}
	for _, name := range copied.Changed {
		a.say("warning: %s changed while it was read", console.OneLine(name))
	}
	for _, s := range copied.Skipped {
		a.say("left out: %s", console.OneLine(s))
	}
	return nil
}
