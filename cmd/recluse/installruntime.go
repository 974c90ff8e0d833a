package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/internal/dockersetup"
)

type runtimeOptions struct {
	dockersetup.Runtime
	yes, dry, undo bool
}

// installation is the JSON result of install-runtime: what was done, or would be done with --dry-run.
type installation struct {
	File    string `json:"file"`
	Runtime string `json:"runtime"`
	Program string `json:"program"`
	Backup  string `json:"backup,omitempty"`
	Changed bool   `json:"changed"`
	DryRun  bool   `json:"dry_run"`
	Content string `json:"content"`
	Reload  string `json:"reload"`
}

func (a *app) installRuntimeCommand() *cobra.Command {
	var o runtimeOptions
	c := &cobra.Command{
		Use:   "install-runtime",
		Short: "Register recluse-engine as a runtime of Docker",
		Long: `Register recluse-engine as a runtime of Docker.

With this runtime, each container gets its own kernel (gVisor). The command copies
recluse-engine to ` + dockersetup.InstalledEngine + `, unless --program is given, and
adds the runtime to daemon.json of the Docker engine on this machine. Other settings in
daemon.json stay, and a backup is kept beside it. The command asks before it changes
anything, unless --yes is given.

Reload the Docker engine afterwards. Running containers are not affected.`,
		Example: `  recluse install-runtime --dry-run
  sudo recluse install-runtime --yes && sudo systemctl reload docker
  recluse doctor --backend docker
  sudo recluse install-runtime --undo`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.installRuntime(c.Context(), &o) },
	}
	f := c.Flags()
	f.StringVar(&o.File, "daemon-config", "",
		"configuration `file` of the Docker engine (default /etc/docker/daemon.json, or that of a rootless engine)")
	f.StringVar(&o.Name, "name", "runsc", "`name` of the runtime")
	f.StringVar(&o.Program, "program", "",
		"`path` of the runtime program to register, instead of a copy of recluse-engine")
	f.BoolVar(&o.yes, "yes", false, "do not ask before changing files")
	f.BoolVar(&o.dry, "dry-run", false, "show the changes without making them")
	f.BoolVar(&o.undo, "undo", false, "remove the runtime again")
	return c
}

func (a *app) installRuntime(ctx context.Context, o *runtimeOptions) error {
	plan := o.Install
	if o.undo {
		plan = o.Uninstall
	}
	o.Host = os.Getenv("DOCKER_HOST")
	change, err := plan(ctx)
	if err != nil {
		return err
	}
	done := installation{
		File:    change.File,
		Runtime: o.Name,
		Program: change.Program,
		Changed: change.Needed(),
		DryRun:  o.dry,
		Content: string(change.After),
		Reload:  "systemctl reload docker, or send SIGHUP to dockerd",
	}
	if change.Needed() {
		done.Backup = change.Backup
		if !a.json {
			a.printChange(change)
		}
	}
	if !o.dry {
		if change.Needed() {
			if err := a.consent(o.yes, "write "+change.File); err != nil {
				return err
			}
		}
		if err := change.Apply(); err != nil {
			return err
		}
	}
	if a.json {
		return console.WriteJSON(a.stdout, done)
	}
	switch {
	case !change.Needed():
		fmt.Fprintf(a.stdout, "%s needs no change\n", change.File)
	case !o.dry:
		fmt.Fprintf(a.stdout, "written\nreload the Docker engine: %s\nthen check it: recluse doctor --backend docker\n",
			done.Reload)
	}
	return nil
}

func (a *app) printChange(c *dockersetup.Installation) {
	fmt.Fprintf(a.stdout, "new content of %s:\n\n%s\n", c.File, c.After)
	if c.Backup != "" {
		fmt.Fprintf(a.stdout, "backup of the current file: %s\n", c.Backup)
	}
}

// consent asks the user for consent on the terminal, unless it is given already. Without a terminal it returns an
// error.
func (a *app) consent(given bool, what string) error {
	if given {
		return nil
	}
	if a.json || !term.IsTerminal(int(a.stdin.Fd())) {
		return &v1.Error{
			Code:    v1.CodeConsentMissing,
			Op:      what,
			Message: "missing consent, and there is no terminal to ask for it",
			Remedy:  "give --yes",
		}
	}
	fmt.Fprintf(a.stderr, "%s? [y/N] ", what)
	line, _ := bufio.NewReader(a.stdin).ReadString('\n') // an error counts as no
	if answer := strings.ToLower(strings.TrimSpace(line)); answer != "y" && answer != "yes" {
		return &v1.Error{Code: v1.CodeConsentMissing, Op: what, Message: "declined; nothing was changed"}
	}
	return nil
}
