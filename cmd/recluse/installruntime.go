package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
	"github.com/recluse-dev/recluse/sandbox/docker"
)

// installedEngine is where the engine goes, since the cache may be emptied.
const installedEngine = "/usr/local/bin/" + bundle.EngineName

type runtimeOptions struct {
	file, name, program string
	yes, dry, undo      bool
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
		Short: "Register our engine as a runtime of Docker's, so that containers get a kernel of their own",
		Long: `Register our engine as the runtime runsc of the Docker engine on this machine, so that containers get a kernel of their own.

It copies the engine to ` + installedEngine + `, unless --program names one, and adds the runtime to the engine's daemon.json. The
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
	f.StringVar(&o.file, "daemon-config", "", "the engine's configuration `file` (default /etc/docker/daemon.json, or the user's own where the engine is)")
	f.StringVar(&o.name, "name", "runsc", "`name` of the runtime")
	f.StringVar(&o.program, "program", "", "use this `program` where it is, and copy none")
	f.BoolVar(&o.yes, "yes", false, "consent")
	f.BoolVar(&o.dry, "dry-run", false, "only show what would be done")
	f.BoolVar(&o.undo, "undo", false, "take it out again")
	return c
}

func (a *app) installRuntime(ctx context.Context, o *runtimeOptions) error {
	if runtime.GOOS != "linux" {
		return backend.NotSupported(docker.Name, "register a runtime in an engine that is in a virtual machine", "the gvisor backend needs Linux as well")
	}
	if o.file == "" {
		var err error
		if o.file, err = daemonFile(os.Getenv("DOCKER_HOST")); err != nil {
			return err
		}
	}
	var engine bundle.Program
	program := o.program
	if program == "" {
		program = installedEngine
		var err error
		if engine, err = bundle.Engine(ctx); err != nil && !o.undo {
			return err
		}
	}
	var change *docker.RuntimeChange
	var err error
	if o.undo {
		change, err = docker.PlanRuntimeRemoval(o.file, o.name)
	} else {
		change, err = docker.PlanRuntime(o.file, o.name, program)
	}
	if err != nil {
		return err
	}
	done := installation{
		File: change.File, Runtime: o.name, Program: change.Program, Changed: change.Needed(), DryRun: o.dry, Content: string(change.After),
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
		if err := o.apply(change, engine); err != nil {
			return err
		}
	}
	if a.json {
		return writeJSON(a.stdout, done)
	}
	switch {
	case !change.Needed():
		fmt.Fprintf(a.stdout, "nothing to do in %s\n", change.File)
	case !o.dry:
		fmt.Fprintf(a.stdout, "written. Now let the engine read it: %s\nthen see: recluse doctor --backend docker\n", done.Reload)
	}
	return nil
}

// apply installs the program before the file names it, and removes it after.
func (o *runtimeOptions) apply(c *docker.RuntimeChange, engine bundle.Program) error {
	if !o.undo {
		if engine.Path != "" {
			if err := copyProgram(engine.Path, installedEngine); err != nil {
				return &sandbox.Error{Code: sandbox.CodeInternal, Op: "install the engine", Message: installedEngine + " cannot be written", Remedy: "run this as root, or name a --program", Err: err}
			}
		}
		return c.Apply()
	}
	if err := c.Apply(); err != nil {
		return err
	}
	if c.Program == installedEngine && engine.Path != installedEngine {
		if err := os.Remove(installedEngine); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return &sandbox.Error{Code: sandbox.CodeInternal, Op: "remove the engine's copy", Message: installedEngine, Err: err}
		}
	}
	return nil
}

func (a *app) printChange(c *docker.RuntimeChange) {
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
		return &sandbox.Error{Code: sandbox.CodeConsentMissing, Op: what, Message: "nobody has consented, and nobody can be asked", Remedy: "give --yes"}
	}
	fmt.Fprintf(a.stderr, "%s? [y/N] ", what)
	line, _ := bufio.NewReader(a.stdin).ReadString('\n') // no answer is no
	if answer := strings.ToLower(strings.TrimSpace(line)); answer != "y" && answer != "yes" {
		return &sandbox.Error{Code: sandbox.CodeConsentMissing, Op: what, Message: "nothing was done"}
	}
	return nil
}

// daemonFile guesses the configuration of the engine at an address.
func daemonFile(host string) (string, error) {
	switch socket, local := strings.CutPrefix(host, "unix://"); {
	case host == "", local && (socket == "/var/run/docker.sock" || socket == "/run/docker.sock"):
		return "/etc/docker/daemon.json", nil
	case local && strings.HasPrefix(socket, "/run/user/"):
		dir, err := os.UserConfigDir()
		if err == nil {
			return filepath.Join(dir, "docker", "daemon.json"), nil
		}
	case !local:
		return "", &sandbox.Error{Code: sandbox.CodeInvalidRequest, Op: "find the engine's configuration", Message: "the engine at " + host + " is not on this machine", Remedy: "run this there"}
	}
	return "", &sandbox.Error{Code: sandbox.CodeInvalidRequest, Op: "find the engine's configuration", Message: "nobody knows where that of " + host + " is", Remedy: "name it with --daemon-config"}
}

// copyProgram puts a program in its place at once, so that one that runs is not disturbed.
func copyProgram(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if have, err := os.ReadFile(to); err == nil && bytes.Equal(have, data) {
		return nil
	}
	tmp, err := os.CreateTemp(filepath.Dir(to), ".recluse-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(0o755), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), to)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}
