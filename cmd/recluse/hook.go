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
		Short: "Answer a coding agent's hook",
		Long: `Read a coding agent's hook from the input and answer it, so that the shell command in it runs in the project's session instead of on this
machine. recluse integrate writes this command into an agent's settings; nobody needs to type it.

A call of another tool passes untouched. Input that is not understood blocks the call (exit status 2), or passes it with
--unexpected pass; it is never changed in part.`,
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
	f.StringVar(&h.Agent, "agent", "", "whose hook it is: claude-code, opencode, codex or cursor")
	f.StringVar(&h.Project, "project", "", "`directory` that the sandbox shows, writable, at its own path")
	f.StringVar(&h.Permission, "permission", "", "with claude-code: ask its user about each command, or allow it (default ask)")
	f.StringVar(&h.Unexpected, "unexpected", string(agents.Block), "what becomes of input that is not understood: block, or pass")
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return a.hookRefused(err) })
	c.AddCommand(a.hookRunCommand())
	return c
}

// hook answers one call. Most are answered before main begins: see internal/startup.
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

// hookRefused blocks the call: with any other status agents run the command outside of the sandbox.
func (a *app) hookRefused(err error) error {
	a.tell(err)
	return exit(2)
}

type hookRunOptions struct {
	project   once
	dir, file string
	timeout   v1.Duration
}

// once is a text that is given once.
type once string

// Set implements pflag.Value.
func (o *once) Set(text string) error {
	if *o != "" {
		return errors.New("it is given twice")
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
		Long: `Run a shell command in the session of a project, which is made if there is none: the project's directory is in it, writable, at its own path,
and nothing else of this machine but its programs. Output, errors and exit status are the command's.`,
		Example: `  recluse hook run --project "$PWD" -- 'make test | tail'`,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			// An agent that may run this verb for one project, whatever follows, must reach neither another project nor another server.
			case c.Flags().Changed("config"):
				return usage("--config: this verb uses the default configuration file")
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
	f.Var(&o.project, "project", "`directory` that the sandbox shows")
	f.StringVar(&o.dir, "dir", "", "working `directory` (default the project's)")
	f.StringVar(&o.file, "file", "", "`file` with the command; it is removed")
	f.Var(&o.timeout, "timeout", "end it, and everything it started, after this `duration` (default none)")
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return err }) // it blocks nothing: not the hook's
	return c
}

// hookRunFile runs a command that was too long for a command line.
func (a *app) hookRunFile(ctx context.Context, o *hookRunOptions) error {
	dir, err := agents.SpoolDir()
	if err != nil {
		return err
	}
	if filepath.Dir(o.file) != dir {
		return usage("--file: only what recluse hook has written is run")
	}
	code, err := os.ReadFile(o.file)
	if err != nil {
		return &v1.Error{Code: v1.CodeInvalidRequest, Op: "read the command", Message: "it is no longer there", Remedy: "send it again", Err: err}
	}
	_ = os.Remove(o.file) // else it goes with the old ones
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
			Shell: cmp.Or(code, ":"), // nothing is a command, too
			Dir:   cmp.Or(o.dir, project),
			RunOptions: sandbox.RunOptions{
				Stdin:   a.input(),
				Stdout:  a.output(a.stdout),
				Stderr:  a.output(a.stderr),
				Timeout: timeout(o.timeout),
			},
		})
		a.verbose = true // what the gate says is for the agent, which cannot ask for more
		a.warned(v, "")
		return a.conclude(ctx, &execOptions{session: name, timeout: o.timeout}, t, v, err)
	})
}

// projectSpec is the sandbox of a project's session: it shows the project, writable, at its own path, and code runs as the project's owner. Of
// a project that is root's, it runs as the usual user, and root is true.
func (a *app) projectSpec(project string) (spec sandbox.Spec, root bool, err error) {
	cfg, err := a.config()
	if err != nil {
		return spec, false, err
	}
	spec = sandbox.Spec{Limits: cfg.SandboxLimits(), Mounts: []sandbox.Mount{{Host: project, Path: project, Writable: true}}}
	if spec.User, root, err = agents.Owner(project); err != nil {
		err = &v1.Error{Code: v1.CodeInvalidRequest, Op: "find the project", Message: "the directory cannot be used", Err: err}
	}
	return spec, root, err
}
