package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/console"
)

// served returns the body of a verb that is a call of the server.
func (a *app) served(do func(ctx context.Context, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return a.withServer(cmd.Context(), func(ctx context.Context, c *client.Client) error { return do(ctx, c, args) })
	}
}

// withServer does something with the server. A signal ends its context.
func (a *app) withServer(ctx context.Context, do func(context.Context, *client.Client) error) error {
	ctx = a.watch(ctx)
	c, done, err := a.connect(ctx)
	if err != nil {
		return cause(ctx, err)
	}
	defer done()
	if err := do(ctx, c); err != nil {
		return cause(ctx, err)
	}
	return nil
}

// result prints what a verb has to say: a value with --json, else text.
func (a *app) result(v any, format string, args ...any) error {
	if a.json {
		return console.WriteJSON(a.stdout, v)
	}
	_, err := fmt.Fprintf(a.stdout, format, args...)
	return err
}

// ended prints the names of what a verb has ended, if it has ended any, or if nothing failed.
func (a *app) ended(names []string, errs []error, format string, args ...any) error {
	failed := errors.Join(errs...)
	if failed != nil && len(names) == 0 {
		return failed
	}
	return beside(a.result(map[string][]string{"ended": names}, format, args...), failed)
}

// resultTable is result for a list; the first row is a heading.
func (a *app) resultTable(v any, rows [][]string) error {
	if a.json {
		return console.WriteJSON(a.stdout, v)
	}
	return console.Table(a.stdout, rows)
}
