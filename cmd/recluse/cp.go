package main

import (
	"context"
	"errors"
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
		Short: "Copy files and directories into or out of a session",
		Long: `Copy files and directories into or out of a session.

SESSION:PATH names a file in a session. A relative path starts in the working directory of
the session, by default its home directory. volume:NAME/PATH names a file in a volume; no
session is needed for that. For a file of this machine with a colon in its name, write
./name:with:colon. - is stdin or stdout.

As with the usual cp, an existing directory as the destination receives the copies, an
existing file is replaced unless --no-clobber is given, and SOURCE/. means the content of
a directory. Directories are always copied with their content.

Owners are not kept. Devices, pipes and sockets are skipped. So are, out of a session,
links that lead outside of the copied directory. --json lists each copied file: its name
at the source, its path at the destination, its size and its SHA-256.`,
		Example: `  recluse cp data.csv work:/home/user/
  recluse cp -r project work:
  recluse cp work:results ./results
  recluse cp work:report.txt -
  recluse cp big.csv volume:data/in/
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
	c.Flags().BoolVarP(&o.NoClobber, "no-clobber", "n", false, "do not replace existing files")
	c.Flags().BoolP("recursive", "r", false, "no effect, because directories are always copied with their content")
	return c
}

// remotePath splits SESSION:PATH; ok is false for a file of this machine.
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
			return usage("either the sources or the destination must be SESSION:PATH, and the other a file of this machine")
		case ok && name != "" && from != name:
			return usage("all sources must be in one session")
		case ok:
			name, remote = from, append(remote, file)
		}
	}
	if name == volumePrefix {
		return a.cpVolume(ctx, c, sources, remote, dst, to, in, o)
	}
	// Copying into a session makes the session if necessary; to copy out of it, it must exist.
	s, opened, err := c.Open(ctx, name, a.withLimits(session.OpenOptions{Existing: !in}))
	if err != nil {
		return err
	}
	a.noticeOpened(opened)
	var copied *client.Copied
	o.Stdin, o.Stdout = a.stdin, a.stdout
	if in {
		copied, err = s.CopyIn(ctx, sources, dst, o)
	} else {
		copied, err = s.CopyOut(ctx, remote, to, o)
	}
	return a.printCopied(copied, to, err)
}

// volumePrefix is what stands for a session in the names of files of a volume.
const volumePrefix = "volume"

// cpVolume copies into a volume, or out of it.
func (a *app) cpVolume(
	ctx context.Context, c *client.Client, sources, remote []string, dst, to string, in bool, o client.CopyOptions,
) error {
	files := remote
	if in {
		files = []string{dst}
	}
	volume := ""
	inside := make([]string, len(files))
	for i, f := range files {
		name, file, _ := strings.Cut(strings.TrimPrefix(f, "/"), "/")
		if name == "" || volume != "" && name != volume {
			return usage("want volume:NAME/PATH, with the same NAME for all sources")
		}
		volume, inside[i] = name, file
	}
	v, err := c.OpenVolume(ctx, volume, in)
	if err != nil {
		return err
	}
	var copied *client.Copied
	o.Stdin, o.Stdout = a.stdin, a.stdout
	if in {
		copied, err = v.CopyIn(ctx, sources, inside[0], o)
	} else {
		copied, err = v.CopyOut(ctx, inside, to, o)
	}
	return errors.Join(a.printCopied(copied, to, err), v.Close(ctx))
}

// printCopied prints the result of a copy.
func (a *app) printCopied(copied *client.Copied, to string, err error) error {
	if err != nil || to == "-" {
		return err
	}
	if a.json {
		return console.WriteJSON(a.stdout, copied)
	}
	for _, name := range copied.Changed {
		a.notice("warning: %s changed while it was copied", console.OneLine(name))
	}
	for _, s := range copied.Skipped {
		a.notice("skipped: %s", console.OneLine(s))
	}
	return nil
}
