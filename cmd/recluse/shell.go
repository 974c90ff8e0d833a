package main

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/sandbox"
)

// hangUp is how long a shell may take to end after our terminal is closed.
const hangUp = time.Second

func (a *app) shellCommand() *cobra.Command {
	var (
		f       sandboxFlags
		session string
	)
	c := &cobra.Command{
		Use:   "shell [flags] [-- COMMAND [ARG...]]",
		Short: "Open a terminal in a new sandbox or a session",
		Long: `Open a terminal in a new sandbox or a session.

It runs the given command, by default bash, or sh if there is no bash. A new sandbox and
its files end with the command. With --session, the session is created if it does not
exist, and stays. The exit status is that of the command.

With --json, the verdict is printed on stderr at the end.`,
		Example: `  recluse shell
  recluse shell --session work
  recluse shell --memory 1g --mount "$PWD:/work"
  recluse shell -- python3`,
		RunE: func(c *cobra.Command, args []string) error { return a.shell(c.Context(), &f, session, args) },
	}
	c.Flags().SetInterspersed(false)
	c.Flags().StringVar(&session, "session", "", "`name` of a session to open the terminal in")
	f.register(c.Flags())
	a.completeSession(c, "session")
	return c
}

func (a *app) shell(ctx context.Context, f *sandboxFlags, session string, args []string) error {
	in := int(a.stdin.Fd())
	screen, ok := a.stdout.(*os.File)
	if !ok || !term.IsTerminal(in) || !term.IsTerminal(int(screen.Fd())) {
		return &v1.Error{
			Code:    v1.CodeInvalidRequest,
			Op:      "open a shell",
			Message: "stdin and stdout are not a terminal",
			Remedy:  "to run a script from stdin, use recluse exec -- bash",
		}
	}
	ctx = a.watch(ctx)
	t, done, err := a.target(ctx, session, f, v1.OpenOptions{})
	if err != nil {
		return err
	}
	defer done()
	if len(args) == 0 {
		g, err := t.Guest(ctx)
		if err != nil {
			return cause(ctx, err)
		}
		if g.Shell == "" {
			return &v1.Error{
				Code:    v1.CodeNoShell,
				Op:      "open a shell",
				Message: "the sandbox has no shell",
				Remedy:  "run another program with recluse shell -- PROGRAM",
			}
		}
		args = []string{g.Shell}
	}
	_, greeting, err := t.describe(ctx)
	if err != nil {
		return cause(ctx, err)
	}
	a.notice("%s", greeting)
	cmd := sandbox.Command{Args: args, RunOptions: sandbox.RunOptions{KillSurvivors: session == ""}}
	if session != "" {
		cmd.Env, cmd.Dir = f.sandbox.Env, f.sandbox.Dir
	}
	v, err := a.terminal(ctx, t, in, screen, cmd)
	if err != nil {
		return cause(ctx, err)
	}
	a.noticeState(v)
	if a.json {
		if err := console.WriteJSON(a.stderr, v); err != nil {
			return err
		}
	}
	if why, ok := errors.AsType[interrupted](context.Cause(ctx)); ok && v.Ended == v1.EndedCancelled {
		return exit(128 + int(why.signal))
	}
	if v.Ended != v1.EndedExit {
		a.notice("%s", v)
	}
	return exit(v.Status())
}

// terminal runs a command on our terminal. The terminal is in raw mode meanwhile, and restored in every case.
func (a *app) terminal(
	ctx context.Context,
	t target,
	in int,
	screen *os.File,
	cmd sandbox.Command,
) (*sandbox.Verdict, error) {
	before, err := term.MakeRaw(in)
	if err != nil {
		return nil, &v1.Error{
			Code:    v1.CodeInternal,
			Op:      "open a shell",
			Message: "cannot switch the terminal to raw mode",
			Err:     err,
		}
	}
	defer term.Restore(in, before) //nolint:errcheck // no remedy if this fails

	env := map[string]string{"TERM": "xterm-256color"}
	for _, k := range []string{"TERM", "COLORTERM"} {
		if v := os.Getenv(k); v != "" {
			env[k] = v
		}
	}
	maps.Copy(env, cmd.Env)
	resize := make(chan sandbox.Size, 1)
	size := func() sandbox.Size {
		cols, rows, err := term.GetSize(int(screen.Fd()))
		if err != nil || cols <= 0 || rows <= 0 {
			return sandbox.Size{Rows: 24, Cols: 80}
		}
		return sandbox.Size{Rows: rows, Cols: cols}
	}
	signals := make(chan os.Signal, 1)
	notifyResize(signals)
	defer close(signals)
	defer signal.Stop(signals)
	go func() {
		for range signals {
			select {
			case <-resize: // drop a previous size that was not read
			default:
			}
			resize <- size()
		}
	}()
	first := size()
	cmd.Env, cmd.PTY, cmd.Resize, cmd.Stdin, cmd.Stdout = env, &first, resize, a.stdin, screen
	cmd.Timeout, cmd.KillGrace = v1.NoLimit, hangUp
	return t.Run(ctx, cmd)
}
