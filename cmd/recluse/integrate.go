package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/agents"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/internal/hostpath"
	"github.com/recluse-dev/recluse/internal/xdg"
)

type integrateOptions struct {
	agents.Integration
	unexpected string
	dryRun     bool
}

func (a *app) integrateCommand() *cobra.Command {
	var o integrateOptions
	c := &cobra.Command{
		Use:   "integrate AGENT",
		Short: "Join a coding agent: claude-code, opencode, codex or cursor",
		Long: `Write recluse into a coding agent's settings: the MCP server, and with --bash a hook by which the agent's shell commands run in a sandbox
of this project instead of on this machine. The sandbox shows the project's directory, writable, at its own path; --bash is your
consent to that. It shows nothing else of yours, and has no network. Code runs with the user and group of the project's directory;
a project that could not be shown, or that belongs to root, is refused.

Settings that are there stay as they are, comments included; what was there before is kept, and its place is told. Doing it twice
changes nothing, and --undo takes it back.`,
		Example: `  recluse integrate claude-code --dry-run --bash
  recluse integrate claude-code --bash
  recluse integrate cursor --user     # the MCP server alone, for all projects
  recluse integrate codex --undo`,
		Args:      cobra.ExactArgs(1),
		ValidArgs: []cobra.Completion{string(agents.ClaudeCode), string(agents.OpenCode), string(agents.Codex), string(agents.Cursor)},
		RunE:      func(_ *cobra.Command, args []string) error { return a.integrate(args[0], &o) },
	}
	f := c.Flags()
	f.StringVar(&o.Project, "project", "", "the project's `directory` (default the working directory)")
	f.BoolVar(&o.User, "user", false, "write the MCP server into your own settings, for all projects")
	f.BoolVar(&o.Hook, "bash", false, "run the agent's shell commands in a sandbox that shows the project, writable")
	f.BoolVar(&o.AutoApprove, "auto-approve", false, "with --bash and claude-code: run them without asking you each time, which claude -p needs")
	f.StringVar(&o.unexpected, "unexpected", string(agents.Block), "with --bash: what becomes of calls that the hook does not understand, block or pass")
	completeWords(c, "unexpected", string(agents.Block), string(agents.PassThrough))
	f.BoolVar(&o.dryRun, "dry-run", false, "show what would change, and change nothing")
	f.BoolVar(&o.Undo, "undo", false, "take away what an integration has written")
	return c
}

func (a *app) integrate(agent string, o *integrateOptions) error {
	if err := o.complete(agent); err != nil {
		return err
	}
	if o.Hook && !o.Undo {
		if err := a.checkProject(o.Project); err != nil {
			return err
		}
	}
	changes, err := o.Plan()
	if err != nil {
		return err
	}
	if !o.dryRun {
		data, err := xdg.Data()
		if err != nil {
			return err
		}
		if err := agents.Apply(changes, filepath.Join(data, "integrate")); err != nil {
			return err
		}
	}
	if a.json {
		if changes == nil {
			changes = []*agents.Change{}
		}
		return console.WriteJSON(a.stdout, map[string]any{"agent": o.Agent, "dry_run": o.dryRun, "changes": changes, "warnings": append([]string{}, o.Warnings()...)})
	}
	if len(changes) == 0 {
		a.say("nothing to change")
	}
	for _, c := range changes {
		a.printSettings(c, o.dryRun)
	}
	if !o.Undo && !o.Hook && !o.dryRun {
		a.say("with --bash its shell commands would run in the project's sandbox, too")
	}
	if o.Hook && !o.Undo {
		a.say("shell commands in %s run in session %s", o.Project, agents.SessionName(o.Project))
	}
	for _, w := range o.Warnings() {
		a.say("warning: %s", w)
	}
	return nil
}

// checkProject refuses a project whose commands could not run in a sandbox, or not write to it: the agent would learn that with its first one.
func (a *app) checkProject(project string) error {
	const op = "integrate"
	spec, root, err := a.projectSpec(project)
	if err != nil {
		return err
	}
	if err := spec.WithDefaults().Check(); err != nil {
		return &v1.Error{
			Code: v1.CodeMountRefused, Op: op, Message: project + " cannot be shown at its own path inside a sandbox",
			Remedy: "move the project: /tmp, /var/tmp, " + v1.DefaultHome + " and the system's directories are the sandbox's own", Err: err,
		}
	}
	policy := hostpath.Default()
	policy.Allow = a.cfg.Backend.AllowMounts
	if _, err := policy.Judge(project); err != nil {
		return &v1.Error{
			Code: v1.CodeMountRefused, Op: op, Message: project + " is not shown to a sandbox",
			Remedy: fmt.Sprintf("move the project, or add %q to backend.allow_mounts in the configuration (recluse config show)", project), Err: err,
		}
	}
	if root {
		return &v1.Error{
			Code: v1.CodeMountRefused, Op: op, Message: project + " belongs to root, and code in a sandbox is never root: it could not write there",
			Remedy: fmt.Sprintf("give it to another user: chown -R %d:%d %s", v1.DefaultUser.UID, v1.DefaultUser.GID, agents.Quote(project)),
		}
	}
	return nil
}

// complete fills in and checks what was said.
func (o *integrateOptions) complete(agent string) (err error) {
	if o.Agent, err = agents.Parse(agent); err != nil {
		return err
	}
	o.Unexpected = agents.Unexpected(o.unexpected)
	switch {
	case o.Unexpected != agents.Block && o.Unexpected != agents.PassThrough:
		return usage("--unexpected: say block or pass")
	case o.AutoApprove && (!o.Hook || o.Agent != agents.ClaudeCode):
		return usage("--auto-approve is for claude-code with --bash; the other agents decide that by their own settings")
	}
	if o.Project, err = filepath.Abs(o.Project); err == nil {
		o.Project, err = filepath.EvalSymlinks(o.Project) // what the sandbox shows, and what agents say of it, is the real place
	}
	if err != nil {
		return &v1.Error{Code: v1.CodeInvalidRequest, Op: "find the project", Message: "the directory cannot be used", Err: err}
	}
	if fi, err := os.Stat(o.Project); err != nil || !fi.IsDir() {
		return usage("%s is no directory", o.Project)
	}
	if o.Home, err = os.UserHomeDir(); err != nil {
		return &v1.Error{Code: v1.CodeInvalidRequest, Op: "find your settings", Message: "there is no home directory", Err: err}
	}
	o.Program, err = lastingProgram()
	return err
}

// lastingProgram is how agents call this program: by the name that PATH finds it under, which outlives an upgrade, where that is
// this program.
func lastingProgram() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", &v1.Error{Code: v1.CodeInternal, Op: "find this program", Err: err}
	}
	found, err := exec.LookPath("recluse")
	if err == nil {
		found, err = filepath.Abs(found)
	}
	if err == nil && sameProgram(self, found) {
		return found, nil
	}
	return self, nil
}

func sameProgram(x, y string) bool {
	a, aerr := os.Stat(x)
	b, berr := os.Stat(y)
	return aerr == nil && berr == nil && os.SameFile(a, b)
}

// printSettings tells what happened to a file, or would.
func (a *app) printSettings(c *agents.Change, dry bool) {
	verb := "changed"
	switch {
	case c.Before == nil:
		verb = "made"
	case c.After == nil:
		verb = "removed"
	}
	if dry {
		verb = "would be " + verb
	}
	fmt.Fprintf(a.stdout, "%s: %s (%s)\n", console.OneLine(c.Path), verb, c.What)
	if c.Backup != "" {
		fmt.Fprintf(a.stdout, "  before: %s\n", console.OneLine(c.Backup))
	}
	if dry {
		for _, l := range difference(string(c.Before), string(c.After)) {
			fmt.Fprintf(a.stdout, "  %s\n", console.OneLine(strings.TrimSuffix(l, "\n")))
		}
	}
}

// difference shows lines that go and come. What is the same at the beginning and the end is left out.
func difference(before, after string) []string {
	old, now := slices.Collect(strings.Lines(before)), slices.Collect(strings.Lines(after))
	for len(old) > 0 && len(now) > 0 && old[0] == now[0] {
		old, now = old[1:], now[1:]
	}
	for len(old) > 0 && len(now) > 0 && old[len(old)-1] == now[len(now)-1] {
		old, now = old[:len(old)-1], now[:len(now)-1]
	}
	var out []string
	for _, l := range old {
		out = append(out, "- "+l)
	}
	for _, l := range now {
		out = append(out, "+ "+l)
	}
	return out
}
