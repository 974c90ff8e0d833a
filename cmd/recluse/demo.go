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
		Short: "Show what a sandbox is",
		Long: `Show what a sandbox is, step by step and for real: code in a kernel of its own, state kept
between cells, files, a limit that bites, a snapshot and its return, two forks that go their own
ways. The exit status is 1 if a step did not do what it should.`,
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
	o := demo.Options{Backend: b, Out: a.stdout, Made: a.signals.guard, Failed: a.tell}
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
		Long: `Show how a question is answered over a text that no model could read at once. The model is scripted: its replies are written down in
this program, and it is no proof of cleverness. Everything else is real: the text of 10 MB, the sandbox, the calls from code inside it,
the child run with a sandbox of its own, the budget, and the record of the run. It needs no network and no key; the prices are made up.

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
	g, err := a.ground(ctx, f)
	if err != nil {
		return cause(ctx, err)
	}
	e, err := g.engine(ctx, rlm.Options{
		Models:     demo.Models(),
		Limits:     v1.RunLimits{Tokens: new(int64(6_000_000)), Cost: new(2.0), Time: new(v1.Duration(5 * time.Minute)), Depth: new(2)},
		PlainBelow: -1,
	})
	if err != nil {
		return cause(ctx, err)
	}
	if !a.json {
		fmt.Fprintf(a.stderr, "\n  The model is scripted: its replies are written down in this program. The text of %d MB, the sandboxes,\n"+
			"  the calls from code inside, the child run and the budget are real. Nothing is paid: the prices are made up.\n\n", demo.HaystackBytes/1_000_000)
	}
	var last following
	err = a.follow(ctx, false, func(ctx context.Context) (following, error) {
		r, err := e.Start(ctx, rlm.Question{Query: demo.Question, Inputs: []rlm.Input{rlm.File(path)}, Labels: map[string]string{"demo": "rlm"}})
		if err != nil {
			return nil, err
		}
		last = r
		return r, nil
	})
	if err != nil {
		return err
	}
	res, _ := last.Wait() // it has ended well, or follow would have told
	if !a.json {
		fmt.Fprintf(a.stderr, "\n  recluse runs show %s tells what it did, recluse runs replay runs it again.\n", res.Run)
	}
	if res.Answer != demo.Answer {
		a.say("that is not what is hidden in the text: %s", demo.Answer)
		return exit(1)
	}
	return nil
}
