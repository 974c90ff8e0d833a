package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/internal/doctor"
)

func (a *app) doctorCommand() *cobra.Command {
	var f backendFlags
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Show which backends work here, and why others do not",
		Long: `Show which backends work on this machine, and why others do not.

It also shows which backend is selected. The exit status is 0 if a backend with isolation
works, else 1.`,
		Example: `  recluse doctor
  recluse doctor --json
  recluse doctor --backend local --allow-no-isolation`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.doctor(c.Context(), &f) },
	}
	f.register(c.Flags())
	return c
}

func (a *app) doctor(ctx context.Context, f *backendFlags) error {
	req, err := f.requirements(a)
	if err != nil {
		return err
	}
	ctx = a.watch(ctx)
	report := doctor.Diagnose(ctx, doctor.Options{
		Backends: a.backends(ctx),
		Require:  req,
		Made:     a.signals.guard,
		Failed:   a.printError,
	})
	if a.json {
		if err := console.WriteJSON(a.stdout, report); err != nil {
			return err
		}
	} else {
		report.Print(a.stdout)
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if !report.Isolates() {
		return exit(1)
	}
	return nil
}
