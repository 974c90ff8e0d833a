// Command gate shows code that is judged before it runs. Scripts that the rules refuse never reach
// the sandbox; the reason is written for the model that wrote them. To judge all code of a session
// or a run, set session.Options.Gate or rlm.Options.Gate instead.
//
//	go run ./examples/gate
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/gate/rules"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/gvisor"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "gate:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	set, err := rules.Default()
	if err != nil {
		return err
	}
	checker, err := gate.New(gate.Options{Rules: set, RulesMode: gate.ModeBlock})
	if err != nil {
		return err
	}
	defer checker.Close()
	backend, err := gvisor.New(gvisor.Options{})
	if err != nil {
		return err
	}
	s, err := sandbox.Open(ctx, backend, sandbox.Spec{})
	if err != nil {
		return err
	}
	defer s.Close()

	for _, script := range []string{"echo tidy > notes; cat notes", "cd / && rm -rf .", "eval $(cat notes)"} {
		c := sandbox.Command{Shell: script}
		d, err := gate.Enforce(ctx, checker, gate.CommandRequest(c, s.Spec()))
		fmt.Printf("%-5s %s\n", d.Action, script)
		if v1.CodeOf(err) == v1.CodeGateRefused {
			fmt.Println("     ", d.Findings[0])
			continue
		}
		if err != nil { // no judgement: do not run the code
			return err
		}
		v, err := s.Run(ctx, c)
		if err != nil {
			return err
		}
		fmt.Printf("      %s, %q\n", v, v.Stdout)
	}
	return nil
}
