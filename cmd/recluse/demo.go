package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/internal/demo"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox/backend"
)

func (a *app) demoCommand() *cobra.Command {
	var f backendFlags
	c := &cobra.Command{
		Use:   "demo",
		Short: "Show what a sandbox does, step by step",
		Long: `Show what a sandbox does, step by step.

The steps are real: code on its own kernel, state kept between cells, files, a limit that
is enforced, a snapshot that is restored, and two forks that differ. The exit status is 1
if a step fails.`,
		Example: "  recluse demo\n  recluse demo --json",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return a.demo(c.Context(), &f) },
	}
	f.register(c.Flags())
	c.AddCommand(a.demoRLMCommand())
	return c
}

func (a *app) demo(ctx context.Context, f *backendFlags) error {
	req, err := f.requirements(a)
	if err != nil {
		return err
	}
	ctx = a.watch(ctx)
	b, _, err := backend.Select(ctx, a.backends(ctx), req)
	if err != nil {
		return cause(ctx, err)
	}
	o := demo.Options{Backend: b, Out: a.stdout, Made: a.signals.guard, Failed: a.printError}
	if a.json {
		o.Out = nil
	}
	result := demo.Run(ctx, o)
	if why := context.Cause(ctx); why != nil {
		return why
	}
	if a.json {
		if err := console.WriteJSON(a.stdout, result); err != nil {
			return err
		}
	}
	if !result.OK {
		return exit(1)
	}
	return nil
}

func (a *app) demoRLMCommand() *cobra.Command {
	var f sandboxFlags
	c := &cobra.Command{
		Use:   "rlm",
		Short: "Show a run over 10 MB of text, with a scripted model",
		Long: `Show a run over 10 MB of text, with a scripted model.

The replies of the model are part of this program, so the demo proves nothing about models.
Everything else is real: the text, the sandbox, the calls from code in it, the child run
with its own sandbox, the budget and the trajectory. The demo needs no network and no key;
its prices are invented.

The exit status is 1 if the answer is not the one that is hidden in the text.`,
		Example: "  recluse demo rlm\n  recluse demo rlm --json",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return a.demoRLM(c.Context(), &f) },
	}
	f.register(c.Flags())
	return c
}

func (a *app) demoRLM(ctx context.Context, f *sandboxFlags) error {
	ctx = a.watch(ctx)
	dir, err := os.MkdirTemp("", "recluse-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "haystack.txt")
	if err := demo.WriteHaystack(path); err != nil {
		return err
	}
	g, err := a.engineParts(ctx, f)
	if err != nil {
		return cause(ctx, err)
	}
	e, err := g.engine(ctx, rlm.Options{
		Models: demo.Models(),
		Limits: v1.RunLimits{
			Tokens: new(int64(6_000_000)),
			Cost:   new(2.0),
			Time:   new(v1.Duration(5 * time.Minute)),
			Depth:  new(2),
		},
		PlainBelow: -1,
	})
	if err != nil {
		return cause(ctx, err)
	}
	if !a.json {
		fmt.Fprintf(
			a.stderr,
			"\n  The model is scripted: its replies are part of this program. The text of %d MB,\n"+
				"  the sandboxes, the calls from code in them, the child run and the budget are\n"+
				"  real. It costs nothing: the prices are invented.\n\n",
			demo.HaystackBytes/1_000_000,
		)
	}
	var last following
	err = a.follow(ctx, false, func(ctx context.Context) (following, error) {
		r, err := e.Start(ctx, rlm.Question{
			Query:  demo.Question,
			Inputs: []rlm.Input{rlm.File(path)},
			Labels: map[string]string{"demo": "rlm"},
		})
		if err != nil {
			return nil, err
		}
		last = r
		return r, nil
	})
	if err != nil {
		return err
	}
	res, _ := last.Wait() // follow has returned nil, so the run succeeded
	if !a.json {
		fmt.Fprintf(a.stderr, "\n  recluse runs show %s shows what it did;\n  recluse runs replay repeats it.\n", res.Run)
	}
	if res.Answer != demo.Answer {
		a.notice("wrong answer; the text contains %s", demo.Answer)
		return exit(1)
	}
	return nil
}
