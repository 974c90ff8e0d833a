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

// installation is what was done, or would be, as JSON.
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
		Short: "Register our engine as a runtime of Docker's",
		Long: `Register our engine as the runtime runsc of the Docker engine on this machine, so that containers get a kernel of their own.

It copies the engine to ` + dockersetup.InstalledEngine + `, unless --program names one, and adds the runtime to the engine's daemon.json. The
rest of that file stays, and a copy of it as it was is kept beside it. Nothing is done without consent: it asks, or takes --yes.
The Docker engine then has to read its configuration again; containers that run go on.`,
		Example: `  recluse install-runtime --dry-run
  sudo recluse install-runtime --yes && sudo systemctl reload docker
  recluse doctor --backend docker
  sudo recluse install-runtime --undo`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.installRuntime(c.Context(), &o) },
	}
	f := c.Flags()
	f.StringVar(&o.File, "daemon-config", "", "the engine's configuration `file` (default /etc/docker/daemon.json, or the user's own where the engine is)")
	f.StringVar(&o.Name, "name", "runsc", "`name` of the runtime")
	f.StringVar(&o.Program, "program", "", "use this `program` where it is, and copy none")
	f.BoolVar(&o.yes, "yes", false, "consent")
	f.BoolVar(&o.dry, "dry-run", false, "only show what would be done")
	f.BoolVar(&o.undo, "undo", false, "take it out again")
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
		File: change.File, Runtime: o.Name, Program: change.Program, Changed: change.Needed(), DryRun: o.dry, Content: string(change.After),
		Reload: "systemctl reload docker, or kill -HUP the process dockerd",
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
		fmt.Fprintf(a.stdout, "nothing to do in %s\n", change.File)
	case !o.dry:
		fmt.Fprintf(a.stdout, "written. Now let the engine read it: %s\nthen see: recluse doctor --backend docker\n", done.Reload)
	}
	return nil
}

func (a *app) printChange(c *dockersetup.Installation) {
	fmt.Fprintf(a.stdout, "%s would become\n\n%s\n", c.File, c.After)
	if c.Backup != "" {
		fmt.Fprintf(a.stdout, "and what it is now is kept as %s\n", c.Backup)
	}
}

// consent asks, where somebody can answer.
func (a *app) consent(given bool, what string) error {
	if given {
		return nil
	}
	if a.json || !term.IsTerminal(int(a.stdin.Fd())) {
		return &v1.Error{Code: v1.CodeConsentMissing, Op: what, Message: "nobody has consented, and nobody can be asked", Remedy: "give --yes"}
	}
	fmt.Fprintf(a.stderr, "%s? [y/N] ", what)
	line, _ := bufio.NewReader(a.stdin).ReadString('\n') // no answer is no
	if answer := strings.ToLower(strings.TrimSpace(line)); answer != "y" && answer != "yes" {
		return &v1.Error{Code: v1.CodeConsentMissing, Op: what, Message: "nothing was done"}
	}
	return nil
}
