package main

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/agents"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

func (a *app) hookCommand() *cobra.Command {
	var h agents.HookFlags
	c := &cobra.Command{
		Use:   "hook --agent AGENT --project DIR",
		Short: "Redirect shell commands of a coding agent into a sandbox",
		Long: `Redirect shell commands of a coding agent into a sandbox.

Coding agents run this command; recluse integrate adds it to their settings. It reads a
hook call from stdin and writes the answer to stdout. The answer makes the agent run its
shell command in the session of the project instead of on this machine.

Calls of other tools pass unchanged. Unknown input blocks the call with exit status 2, or
passes unchanged with --unexpected pass.`,
		Example: `  recluse hook --agent claude-code --project "$PWD" < call.json`,
		Args: func(c *cobra.Command, args []string) error {
			if err := cobra.NoArgs(c, args); err != nil {
				return a.hookRefused(err)
			}
			return nil
		},
		RunE: func(*cobra.Command, []string) error {
			return a.hook(h)
		},
	}
	f := c.Flags()
	f.StringVar(&h.Agent, "agent", "", "agent that calls")
	f.StringVar(&h.Project, "project", "",
		"`directory` of the project; the sandbox shows it, writable, at the same path")
	f.StringVar(&h.Permission, "permission", "",
		"with claude-code: ask the user about each command, or allow it (default ask)")
	f.StringVar(&h.Unexpected, "unexpected", string(agents.Block), "action for unknown input")
	completeWords(c, "agent",
		string(agents.ClaudeCode), string(agents.OpenCode), string(agents.Codex), string(agents.Cursor))
	completeWords(c, "permission", "ask", "allow")
	completeWords(c, "unexpected", string(agents.Block), string(agents.PassThrough))
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return a.hookRefused(err) })
	c.AddCommand(a.hookRunCommand())
	return c
}

// hook answers one call. Most calls are answered before main begins: see internal/startup.
func (a *app) hook(f agents.HookFlags) error {
	h, err := agents.NewHook(f)
	if err != nil {
		return a.hookRefused(err)
	}
	if status := h.Serve(a.stdin, a.stdout, a.stderr); status != 0 {
		return exit(status)
	}
	return nil
}

// hookRefused reports err and blocks the call with exit status 2. With any other status, agents run the command outside
// of the sandbox.
func (a *app) hookRefused(err error) error {
	a.printError(err)
	return exit(2)
}

type hookRunOptions struct {
	project   once
	dir, file string
	timeout   v1.Duration
}

// once is the value of a flag that must not be repeated.
type once string

// Set implements pflag.Value.
func (o *once) Set(text string) error {
	if *o != "" {
		return errors.New("duplicate flag")
	}
	*o = once(text)
	return nil
}

// String implements pflag.Value.
func (o *once) String() string { return string(*o) }

// Type implements pflag.Value.
func (*once) Type() string { return "text" }

func (a *app) hookRunCommand() *cobra.Command {
	var o hookRunOptions
	c := &cobra.Command{
		Use:   "run --project DIR [flags] -- COMMAND",
		Short: "Run a shell command in a project's session",
		Long: `Run a shell command in a project's session.

The session is created if it does not exist. Its sandbox shows the directory of the
project, writable, at the same path, and the programs of this machine, nothing else.
stdin, stdout, stderr and the exit status are those of the command.`,
		Example: `  recluse hook run --project "$PWD" -- 'make test | tail'`,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			// An agent that is allowed to run this verb for one project must not reach another project or server by
			// adding flags.
			case c.Flags().Changed("config"):
				return usage("--config: hook run always uses the default configuration file")
			case (len(args) == 1) == (o.file != ""):
				return usage("give a command, or --file")
			}
			if o.file != "" {
				return a.hookRunFile(c.Context(), &o)
			}
			return a.hookRun(c.Context(), &o, args[0])
		},
	}
	f := c.Flags()
	f.Var(&o.project, "project", "`directory` of the project")
	f.StringVar(&o.dir, "dir", "", "working `directory` (default the directory of the project)")
	f.StringVar(&o.file, "file", "", "`file` with the command; it is removed after reading")
	f.Var(&o.timeout, "timeout", "`duration` after which the command and its processes are killed (default none)")
	// Not the function of hook, which blocks the call.
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return err })
	return c
}

// hookRunFile runs a command that was too long for a command line.
func (a *app) hookRunFile(ctx context.Context, o *hookRunOptions) error {
	dir, err := agents.SpoolDir()
	if err != nil {
		return err
	}
	if filepath.Dir(o.file) != dir {
		return usage("--file: want a file that recluse hook has written")
	}
	code, err := os.ReadFile(o.file)
	if err != nil {
		return &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "read the command",
			Message: "the file with the command no longer exists",
			Remedy:  "run the command again",
			Err:     err,
		}
	}
	_ = os.Remove(o.file) // a file that stays is removed with other old ones later
	return a.hookRun(ctx, o, string(code))
}

func (a *app) hookRun(ctx context.Context, o *hookRunOptions, code string) error {
	a.forModel = true
	project := string(o.project)
	if !filepath.IsAbs(project) {
		return usage("--project must be an absolute path")
	}
	spec, _, err := a.projectSpec(project)
	if err != nil {
		return err
	}
	return a.withServer(ctx, func(ctx context.Context, c *client.Client) error {
		name := agents.SessionName(project)
		t := newInSession(c, name, session.OpenOptions{IfNew: session.Settings{Spec: &spec}})
		v, err := t.Run(ctx, sandbox.Command{
			Shell: cmp.Or(code, ":"), // an empty command is valid for agents
			Dir:   cmp.Or(o.dir, project),
			RunOptions: sandbox.RunOptions{
				Stdin:   a.input(),
				Stdout:  a.output(a.stdout),
				Stderr:  a.output(a.stderr),
				Timeout: timeout(o.timeout),
			},
		})
		a.verbose = true // the agent reads the warnings of the gate, and cannot request details later
		a.noticeGate(v, "")
		return a.conclude(ctx, &execOptions{session: name, timeout: o.timeout}, t, v, err)
	})
}

// projectSpec returns the spec for the session of a project: the sandbox shows the project, writable, at the same path,
// and code runs as the owner of the project. If the owner is root, code runs as the default user, and root is true.
func (a *app) projectSpec(project string) (spec sandbox.Spec, root bool, err error) {
	cfg, err := a.config()
	if err != nil {
		return spec, false, err
	}
	spec = sandbox.Spec{
		Limits: cfg.SandboxLimits(),
		Mounts: []sandbox.Mount{{Host: project, Path: project, Writable: true}},
	}
	if spec.User, root, err = agents.Owner(project); err != nil {
		err = &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "find the project",
			Message: "cannot use the directory",
			Err:     err,
		}
	}
	return spec, root, err
}
