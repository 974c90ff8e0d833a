package main

import (
	"context"
	"crypto/rand"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/internal/agents"
	"github.com/recluse-dev/recluse/internal/xdg"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// spoolKept is how long a command waits in a file for its run. One that its user did not approve never comes.
const spoolKept = 24 * time.Hour

// maxScript is the longest script that is run as an argument of a shell: Linux takes 128 KiB for one.
const maxScript = 100 << 10

func (a *app) hookCommand() *cobra.Command {
	var agent, project, permission, unexpected string
	c := &cobra.Command{
		Use:   "hook --agent AGENT --project DIR",
		Short: "Answer a coding agent's hook: its shell commands run in the project's session",
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
			return a.hook(agent, &agents.Hook{Project: project, Permission: permission, Unexpected: agents.Unexpected(unexpected)})
		},
	}
	f := c.Flags()
	f.StringVar(&agent, "agent", "", "whose hook it is: claude-code, opencode, codex or cursor")
	f.StringVar(&project, "project", "", "`directory` that the sandbox shows, writable, at its own path")
	f.StringVar(&permission, "permission", "", "with claude-code: ask its user about each command, or allow it (default ask)")
	f.StringVar(&unexpected, "unexpected", string(agents.Block), "what becomes of input that is not understood: block, or pass")
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return a.hookRefused(err) })
	c.AddCommand(a.hookRunCommand())
	return c
}

// hook answers one call. It neither reads the configuration nor asks a server: an agent waits for it before every tool it uses.
func (a *app) hook(agent string, h *agents.Hook) error {
	var err error
	if h.Agent, err = agents.Parse(agent); err != nil {
		return a.hookRefused(err)
	}
	switch {
	case !filepath.IsAbs(h.Project):
		return a.hookRefused(usage("--project must be an absolute path"))
	case h.Permission != "" && h.Permission != "ask" && h.Permission != "allow":
		return a.hookRefused(usage("--permission: say ask or allow"))
	case h.Unexpected != agents.Block && h.Unexpected != agents.PassThrough:
		return a.hookRefused(usage("--unexpected: say block or pass"))
	}
	h.Project = filepath.Clean(h.Project)
	if h.Program, err = programPath(); err != nil {
		return a.hookRefused(err)
	}
	h.Spool = spool
	in, err := io.ReadAll(io.LimitReader(a.stdin, agents.MaxInput+1))
	if err != nil {
		return a.hookRefused(err)
	}
	reply := h.Answer(in)
	if reply.Stderr != "" {
		if _, err := io.WriteString(a.stderr, reply.Stderr); err != nil {
			return a.hookRefused(err)
		}
	}
	if _, err := a.stdout.Write(reply.Stdout); err != nil {
		return a.hookRefused(err)
	}
	if reply.Status != 0 {
		return exit(reply.Status)
	}
	return nil
}

// hookRefused blocks the call: with any other status agents run the command outside of the sandbox.
func (a *app) hookRefused(err error) error {
	a.tell(err)
	return exit(2)
}

// programPath is how an agent can call this program again.
func programPath() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", &sandbox.Error{Code: sandbox.CodeInternal, Op: "find this program", Err: err}
	}
	return self, nil
}

func spoolDir() (string, error) {
	data, err := xdg.Data()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(data, "hook")
	return dir, xdg.Private(dir)
}

// spool keeps a long command for its run, and forgets those that never came.
func spool(code string) (string, error) {
	dir, err := spoolDir()
	if err != nil {
		return "", err
	}
	if old, err := os.ReadDir(dir); err == nil {
		for _, e := range old {
			if fi, err := e.Info(); err == nil && time.Since(fi.ModTime()) > spoolKept {
				_ = os.Remove(filepath.Join(dir, e.Name())) // somebody else may have
			}
		}
	}
	path := filepath.Join(dir, strings.ToLower(rand.Text())+".sh")
	return path, os.WriteFile(path, []byte(code), 0o600)
}

type hookRunOptions struct {
	project, dir, file string
	timeout            patience
}

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
			if (len(args) == 1) == (o.file != "") {
				return usage("give a command, or --file")
			}
			if o.file != "" {
				return a.hookRunFile(c.Context(), &o)
			}
			return a.hookRun(c.Context(), &o, args[0])
		},
	}
	f := c.Flags()
	f.StringVar(&o.project, "project", "", "`directory` that the sandbox shows")
	f.StringVar(&o.dir, "dir", "", "working `directory` (default the project's)")
	f.StringVar(&o.file, "file", "", "`file` with the command; it is removed")
	f.Var(&o.timeout, "timeout", "end it, and everything it started, after this `duration` (default none)")
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return err }) // it blocks nothing: not the hook's
	return c
}

// hookRunFile runs a command that was too long for a command line.
func (a *app) hookRunFile(ctx context.Context, o *hookRunOptions) error {
	dir, err := spoolDir()
	if err != nil {
		return err
	}
	if filepath.Dir(o.file) != dir {
		return usage("--file: only what recluse hook has written is run")
	}
	code, err := os.ReadFile(o.file)
	if err != nil {
		return &sandbox.Error{Code: sandbox.CodeInvalidRequest, Op: "read the command", Message: "it is no longer there", Remedy: "send it again", Err: err}
	}
	_ = os.Remove(o.file) // else it goes with the old ones
	return a.hookRun(ctx, o, string(code))
}

func (a *app) hookRun(ctx context.Context, o *hookRunOptions, code string) error {
	if !filepath.IsAbs(o.project) {
		return usage("--project must be an absolute path")
	}
	ctx, w := a.watch(ctx)
	defer w.stop()
	c, done, err := a.connect(ctx)
	if err != nil {
		return cause(ctx, err)
	}
	defer done()
	name := agents.SessionName(o.project)
	s, info, err := a.projectSession(ctx, c, name, o.project)
	if err != nil {
		return cause(ctx, err)
	}
	dir := o.dir
	if dir == "" {
		dir = o.project
	}
	t := inSession{s, info}
	warning := ""
	if len(code) > maxScript {
		var forget func()
		if code, warning, forget, err = a.longScript(ctx, t, code); err != nil {
			return cause(ctx, err)
		}
		defer forget()
	}
	if code == "" {
		code = ":" // nothing is a command, too
	}
	v, err := t.Run(ctx, sandbox.Command{
		Shell: code, Dir: dir, Stdin: a.input(), Stdout: &output{w: a.stdout, cancel: w.cancel}, Stderr: &output{w: a.stderr, cancel: w.cancel}, Timeout: o.timeout.timeout(),
	})
	a.warned(v, warning)
	return a.conclude(ctx, &execOptions{session: name, timeout: o.timeout}, t, v, err)
}

// longScript puts a script into the session's sandbox that no command line takes, and gives the short one that runs it. The gate of the session
// sees only that one, so the script is judged here.
func (a *app) longScript(ctx context.Context, t inSession, code string) (short, warning string, forget func(), err error) {
	if warning, err = a.judgeIn(ctx, t.info, gate.Request{Language: gate.Bash, Code: code}); err != nil {
		return "", "", nil, err
	}
	file := "/tmp/.recluse-" + shortID() + ".sh"
	if err := t.put(ctx, file, []byte(code)); err != nil {
		return "", "", nil, err
	}
	forget = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveWait)
		defer cancel()
		_ = t.Files().Remove(ctx, file, false) // it ends with the session otherwise
	}
	return ". " + file, warning, forget, nil
}

// projectSession finds a project's session, or makes it.
func (a *app) projectSession(ctx context.Context, c *client.Client, name, project string) (*client.Session, session.Info, error) {
	s, info, err := c.Get(ctx, name)
	if !gone(err) {
		return s, info, err
	}
	spec := sandbox.Spec{Limits: limitsOf(a.cfg), Mounts: []sandbox.Mount{{Host: project, Path: project, Writable: true}}}
	s, _, err = c.Open(ctx, name, session.OpenOptions{Spec: &spec})
	if err != nil {
		return nil, info, err
	}
	info, err = s.Info(ctx)
	return s, info, err
}
