package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/recluse-dev/recluse/sandbox"
)

// hangUp is how long a shell has to end when our terminal has gone.
const hangUp = time.Second

func (a *app) shellCommand() *cobra.Command {
	var m machine
	c := &cobra.Command{
		Use:   "shell [flags] [-- COMMAND [ARG...]]",
		Short: "Open a terminal in a new sandbox",
		Long: `Open a terminal in a new sandbox: bash where there is one, else sh, or the command that is
given. The sandbox ends with it, and its files too. The exit status is the shell's.

With --json the verdict is printed on stderr when it has ended.`,
		Example: `  recluse shell
  recluse shell --memory 1g --mount "$PWD:/work"
  recluse shell -- python3`,
		RunE: func(c *cobra.Command, args []string) error { return a.shell(c.Context(), &m, args) },
	}
	c.Flags().SetInterspersed(false)
	m.register(c.Flags())
	return c
}

func (a *app) shell(ctx context.Context, m *machine, args []string) error {
	in := int(a.stdin.Fd())
	screen, ok := a.stdout.(*os.File)
	if !ok || !term.IsTerminal(in) || !term.IsTerminal(int(screen.Fd())) {
		return &sandbox.Error{Code: sandbox.CodeInvalidRequest, Op: "open a shell", Message: "input and output are not a terminal", Remedy: "recluse exec -- bash runs a script from its input"}
	}
	spec, err := m.spec()
	if err != nil {
		return err
	}
	ctx, w := a.watch(ctx)
	defer w.stop()
	s, err := a.open(ctx, w, &m.choice, spec)
	if err != nil {
		return err
	}
	defer a.close(s)
	if len(args) == 0 {
		g, err := s.Guest(ctx)
		if err != nil {
			return cause(ctx, err)
		}
		if g.Shell == "" {
			return &sandbox.Error{Code: sandbox.CodeNoShell, Op: "open a shell", Message: "there is none in the sandbox", Remedy: "recluse shell -- PROGRAM runs another program"}
		}
		args = []string{g.Shell}
	}
	a.say("%s sandbox %s; nothing of it is kept after you leave", s.Backend().Name(), s.ID())
	v, err := a.terminal(ctx, s, in, screen, args)
	if err != nil {
		return cause(ctx, err)
	}
	if a.json {
		if err := writeJSON(a.stderr, v); err != nil {
			return err
		}
	}
	if why, ok := errors.AsType[interrupted](context.Cause(ctx)); ok && v.Ended == sandbox.EndedCancelled {
		return exit(128 + int(why.signal))
	}
	if v.Ended != sandbox.EndedExit {
		a.say("%s", v)
	}
	if status := v.Status(); status != 0 {
		return exit(status)
	}
	return nil
}

// terminal runs a command on our terminal, which is raw meanwhile and as before on every way out.
func (a *app) terminal(ctx context.Context, s *sandbox.Sandbox, in int, screen *os.File, args []string) (*sandbox.Verdict, error) {
	before, err := term.MakeRaw(in)
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeInternal, Op: "open a shell", Message: "the terminal cannot be made raw", Err: err}
	}
	defer term.Restore(in, before) //nolint:errcheck // there is nothing else to try

	env := map[string]string{"TERM": "xterm-256color"}
	for _, k := range []string{"TERM", "COLORTERM"} {
		if v := os.Getenv(k); v != "" {
			env[k] = v
		}
	}
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
	done := make(chan struct{})
	defer close(done)
	defer signal.Stop(signals)
	go func() {
		for {
			select {
			case <-done:
				return
			case <-signals:
			}
			select {
			case resize <- size():
			case <-done:
				return
			}
		}
	}()
	first := size()
	return s.Run(ctx, sandbox.Command{
		Args: args, Env: env, PTY: &first, Resize: resize, Stdin: a.stdin, Stdout: screen, Timeout: sandbox.NoTimeout, KillGrace: hangUp, KillSurvivors: true,
	})
}
