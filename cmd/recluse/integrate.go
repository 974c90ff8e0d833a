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
		Short: "Add recluse to claude-code, opencode, codex or cursor",
		Long: `Add recluse to claude-code, opencode, codex or cursor.

The command adds the MCP server of recluse to the settings of the agent. With --bash it
also adds a hook: the shell commands of the agent then run in a sandbox of the project
instead of on this machine. That sandbox has no network. It shows the directory of the
project, writable, at the same path, and nothing else of yours. Code runs with the user
and group of that directory. Projects that belong to root, or that a sandbox must not
show, are refused.

Other settings of the agent stay, comments included. A backup is kept, and its path is
printed. Running the command again changes nothing. --undo removes what it added.`,
		Example: `  recluse integrate claude-code --dry-run --bash
  recluse integrate claude-code --bash
  recluse integrate cursor --user     # only the MCP server, for all projects
  recluse integrate codex --undo`,
		Args: cobra.ExactArgs(1),
		ValidArgs: []cobra.Completion{
			string(agents.ClaudeCode),
			string(agents.OpenCode),
			string(agents.Codex),
			string(agents.Cursor),
		},
		RunE: func(_ *cobra.Command, args []string) error { return a.integrate(args[0], &o) },
	}
	f := c.Flags()
	f.StringVar(&o.Project, "project", "", "`directory` of the project (default the working directory)")
	f.BoolVar(&o.User, "user", false, "add the MCP server to your user settings, for all projects")
	f.BoolVar(&o.Hook, "bash", false, "run the agent's shell commands in a sandbox that can write to the project")
	f.BoolVar(&o.AutoApprove, "auto-approve", false,
		"with --bash and claude-code: do not ask you before each shell command; claude -p needs this")
	f.StringVar(&o.unexpected, "unexpected", string(agents.Block),
		"with --bash: action for hook calls with unknown input")
	completeWords(c, "unexpected", string(agents.Block), string(agents.PassThrough))
	f.BoolVar(&o.dryRun, "dry-run", false, "show the changes without making them")
	f.BoolVar(&o.Undo, "undo", false, "remove what integrate has added")
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
		return console.WriteJSON(a.stdout, map[string]any{
			"agent":    o.Agent,
			"dry_run":  o.dryRun,
			"changes":  changes,
			"warnings": append([]string{}, o.Warnings()...),
		})
	}
	if len(changes) == 0 {
		a.notice("nothing to change")
	}
	for _, c := range changes {
		a.printSettings(c, o.dryRun)
	}
	if !o.Undo && !o.Hook && !o.dryRun {
		a.notice("to also run the agent's shell commands in a sandbox of the project, add --bash")
	}
	if o.Hook && !o.Undo {
		a.notice("shell commands in %s run in session %s", o.Project, agents.SessionName(o.Project))
	}
	for _, w := range o.Warnings() {
		a.notice("warning: %s", w)
	}
	return nil
}

// checkProject returns an error if commands of the project could not run in a sandbox, or could not write to the
// project. Without this check the agent would fail at its first command.
func (a *app) checkProject(project string) error {
	const op = "integrate"
	spec, root, err := a.projectSpec(project)
	if err != nil {
		return err
	}
	if err := spec.WithDefaults().Check(); err != nil {
		return &v1.Error{
			Code:    v1.CodeMountRefused,
			Op:      op,
			Message: project + " cannot be mounted at the same path in a sandbox",
			Remedy: "move the project; /tmp, /var/tmp, " + v1.DefaultHome +
				" and system directories belong to the sandbox",
			Err: err,
		}
	}
	policy := hostpath.Default()
	policy.Allow = a.cfg.Backend.AllowMounts
	if _, err := policy.Judge(project); err != nil {
		return &v1.Error{
			Code:    v1.CodeMountRefused,
			Op:      op,
			Message: project + " must not be mounted in a sandbox",
			Remedy: fmt.Sprintf("move the project, or add %q to backend.allow_mounts in the configuration "+
				"(recluse config show)", project),
			Err: err,
		}
	}
	if root {
		return &v1.Error{
			Code:    v1.CodeMountRefused,
			Op:      op,
			Message: project + " belongs to root, so code in a sandbox, which is never root, cannot write to it",
			Remedy: fmt.Sprintf("change its owner: chown -R %d:%d %s",
				v1.DefaultUser.UID, v1.DefaultUser.GID, agents.Quote(project)),
		}
	}
	return nil
}

// complete checks the flags and sets the fields that follow from them.
func (o *integrateOptions) complete(agent string) (err error) {
	if o.Agent, err = agents.Parse(agent); err != nil {
		return err
	}
	o.Unexpected = agents.Unexpected(o.unexpected)
	switch {
	case o.Unexpected != agents.Block && o.Unexpected != agents.PassThrough:
		return usage("invalid --unexpected %q: want block or pass", o.unexpected)
	case o.AutoApprove && (!o.Hook || o.Agent != agents.ClaudeCode):
		return usage("--auto-approve needs claude-code and --bash; other agents have their own setting for it")
	}
	if o.Project, err = filepath.Abs(o.Project); err == nil {
		o.Project, err = filepath.EvalSymlinks(o.Project) // the sandbox shows the real path, and agents report it
	}
	if err != nil {
		return &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "find the project",
			Message: "cannot use the directory",
			Err:     err,
		}
	}
	if fi, err := os.Stat(o.Project); err != nil || !fi.IsDir() {
		return usage("%s is not a directory", o.Project)
	}
	if o.Home, err = os.UserHomeDir(); err != nil {
		return &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "find your settings",
			Message: "missing home directory",
			Err:     err,
		}
	}
	o.Program, err = lastingProgram()
	return err
}

// lastingProgram returns the path by which agents call this program: the path that PATH leads to, which stays valid
// after an upgrade, or else the path of the executable.
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

// printSettings prints a change of a settings file, or with dry a planned change and its lines.
func (a *app) printSettings(c *agents.Change, dry bool) {
	verb := "changed"
	switch {
	case c.Before == nil:
		verb = "created"
	case c.After == nil:
		verb = "removed"
	}
	if dry {
		verb = "would be " + verb
	}
	fmt.Fprintf(a.stdout, "%s: %s (%s)\n", console.OneLine(c.Path), verb, c.What)
	if c.Backup != "" {
		fmt.Fprintf(a.stdout, "  backup: %s\n", console.OneLine(c.Backup))
	}
	if dry {
		for _, l := range difference(string(c.Before), string(c.After)) {
			fmt.Fprintf(a.stdout, "  %s\n", console.OneLine(strings.TrimSuffix(l, "\n")))
		}
	}
}

// difference returns the removed and added lines, marked with - and +. Equal lines at the beginning and end are left
// out.
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
