package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/console"
)

// served returns the body of a verb that calls the server.
func (a *app) served(
	do func(ctx context.Context, c *client.Client, args []string) error,
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return a.withServer(cmd.Context(), func(ctx context.Context, c *client.Client) error { return do(ctx, c, args) })
	}
}

// withServer connects to the server and calls do. A signal cancels the ctx of do.
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

// result prints the result of a verb: the value v with --json, else the text.
func (a *app) result(v any, format string, args ...any) error {
	if a.json {
		return console.WriteJSON(a.stdout, v)
	}
	_, err := fmt.Fprintf(a.stdout, format, args...)
	return err
}

// printEnded prints the names of the ended objects and returns the errors. If there are only errors, it prints nothing.
func (a *app) printEnded(names []string, errs []error, format string, args ...any) error {
	failed := errors.Join(errs...)
	if failed != nil && len(names) == 0 {
		return failed
	}
	return withResult(a.result(map[string][]string{"ended": names}, format, args...), failed)
}

// resultTable prints the value v with --json, else a table whose first row is a heading.
func (a *app) resultTable(v any, rows [][]string) error {
	if a.json {
		return console.WriteJSON(a.stdout, v)
	}
	return console.Table(a.stdout, rows)
}
