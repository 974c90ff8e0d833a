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

// hangUp is how long a shell has to end when our terminal has gone.
const hangUp = time.Second

func (a *app) shellCommand() *cobra.Command {
	var (
		f       sandboxFlags
		session string
	)
	c := &cobra.Command{
		Use:   "shell [flags] [-- COMMAND [ARG...]]",
		Short: "Open a terminal in a new sandbox or a session",
		Long: `Open a terminal in a new sandbox: bash where there is one, else sh, or the command that is
given. The sandbox ends with it, and its files too. The exit status is the shell's.

With --session the terminal is in the session of that name, which is made if there is none, and stays.

With --json the verdict is printed on stderr when it has ended.`,
		Example: `  recluse shell
  recluse shell --session work
  recluse shell --memory 1g --mount "$PWD:/work"
  recluse shell -- python3`,
		RunE: func(c *cobra.Command, args []string) error { return a.shell(c.Context(), &f, session, args) },
	}
	c.Flags().SetInterspersed(false)
	c.Flags().StringVar(&session, "session", "", "open it in the session of this `name`")
	f.register(c.Flags())
	a.completeSession(c, "session")
	return c
}

func (a *app) shell(ctx context.Context, f *sandboxFlags, session string, args []string) error {
	in := int(a.stdin.Fd())
	screen, ok := a.stdout.(*os.File)
	if !ok || !term.IsTerminal(in) || !term.IsTerminal(int(screen.Fd())) {
		return &v1.Error{Code: v1.CodeInvalidRequest, Op: "open a shell", Message: "input and output are not a terminal", Remedy: "recluse exec -- bash runs a script from its input"}
	}
	ctx = a.watch(ctx)
	t, done, err := a.target(ctx, session, f, nil)
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
			return &v1.Error{Code: v1.CodeNoShell, Op: "open a shell", Message: "there is none in the sandbox", Remedy: "recluse shell -- PROGRAM runs another program"}
		}
		args = []string{g.Shell}
	}
	_, greeting, err := t.describe(ctx)
	if err != nil {
		return cause(ctx, err)
	}
	a.say("%s", greeting)
	cmd := sandbox.Command{Args: args, RunOptions: sandbox.RunOptions{KillSurvivors: session == ""}}
	if session != "" {
		cmd.Env, cmd.Dir = f.sandbox.Env, f.sandbox.Dir
	}
	v, err := a.terminal(ctx, t, in, screen, cmd)
	if err != nil {
		return cause(ctx, err)
	}
	a.wentBack(v)
	if a.json {
		if err := console.WriteJSON(a.stderr, v); err != nil {
			return err
		}
	}
	if why, ok := errors.AsType[interrupted](context.Cause(ctx)); ok && v.Ended == v1.EndedCancelled {
		return exit(128 + int(why.signal))
	}
	if v.Ended != v1.EndedExit {
		a.say("%s", v)
	}
	return exit(v.Status())
}

// terminal runs a command on our terminal, which is raw meanwhile and as before on every way out.
func (a *app) terminal(ctx context.Context, t target, in int, screen *os.File, cmd sandbox.Command) (*sandbox.Verdict, error) {
	before, err := term.MakeRaw(in)
	if err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: "open a shell", Message: "the terminal cannot be made raw", Err: err}
	}
	defer term.Restore(in, before) //nolint:errcheck // there is nothing else to try

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
			case <-resize: // nobody has taken the size before, which no longer matters
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
