package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/agents"
	"github.com/recluse-dev/recluse/internal/console"
)

// errorWithResult is the error of a verb that has printed a result although a part of it failed.
type errorWithResult struct{ error }

// Unwrap returns the error.
func (b errorWithResult) Unwrap() error { return b.error }

// withResult returns the error of a verb that has printed its result: printing if that failed, else failed as a
// errorWithResult, or nil.
func withResult(printing, failed error) error {
	if printing != nil || failed == nil {
		return printing
	}
	return errorWithResult{failed}
}

// single returns the errors that are joined in err, or err itself.
func single(err error) []error {
	if b, ok := errors.AsType[errorWithResult](err); ok {
		err = b.error
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var out []error
	for _, e := range joined.Unwrap() {
		out = append(out, single(e)...)
	}
	return out
}

// report prints why the result is missing or incomplete. With --json, stdout has one value: the result, else the first
// error. Other errors are printed on stderr.
func (a *app) report(err error) {
	_, printed := errors.AsType[errorWithResult](err)
	for i, e := range single(err) {
		e = a.readable(e)
		if i > 0 || printed || !a.json || console.WriteJSON(a.stdout, map[string]any{"error": console.NewFailure(e)}) != nil {
			a.printError(e)
		}
	}
}

// readable returns an error as its reader may see it. Models are not shown how to let refused code run; people are.
func (a *app) readable(err error) error {
	if a.modelReads() {
		return v1.ForModel(err)
	}
	return err
}

// modelReads reports whether a model reads our output.
func (a *app) modelReads() bool { return a.forModel || agents.Inside(os.Getenv) }

// printError prints an error on stderr: operation, message and cause, and the remedy on a separate line.
func (a *app) printError(err error) {
	remedy, err := v1.SplitRemedy(a.readable(err))
	what, causes := err.Error(), []string(nil)
	if e, ok := err.(*v1.Error); ok { //nolint:errorlint // an error that wraps one has its own text
		what = cmp.Or((&console.Failure{Op: e.Op, Message: e.Message}).String(), string(e.Code))
		if e.Err != nil {
			causes = strings.Split(strings.TrimSpace(e.Err.Error()), "\n")
		}
	}
	if len(causes) == 1 {
		what, causes = what+": "+causes[0], nil
	}
	a.notice("%s", what)
	for _, c := range causes {
		fmt.Fprintf(a.stderr, "  %s\n", c)
	}
	if remedy != "" {
		fmt.Fprintf(a.stderr, "  remedy: %s\n", remedy)
	}
}

// notice prints one line on stderr, marked as a message of recluse.
func (a *app) notice(format string, args ...any) {
	fmt.Fprintf(a.stderr, "recluse: "+format+"\n", args...)
}

// logger returns a logger that prints warnings and errors on stderr, one line each.
func (a *app) logger() *slog.Logger { return slog.New(lines{a: a}) }

// lines is a slog.Handler that prints as notice does.
type lines struct {
	a     *app
	attrs string
}

// Enabled reports true for warnings and errors.
func (lines) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

// Handle prints one record.
func (h lines) Handle(_ context.Context, r slog.Record) error {
	attrs := h.attrs
	r.Attrs(func(at slog.Attr) bool {
		attrs += fmt.Sprintf(" %s=%v", at.Key, at.Value)
		return true
	})
	word := "warning"
	if r.Level >= slog.LevelError {
		word = "error"
	}
	if attrs != "" {
		attrs = " (" + attrs[1:] + ")"
	}
	h.a.notice("%s: %s%s", word, r.Message, attrs)
	return nil
}

// WithAttrs returns a handler that prints the attributes with every record.
func (h lines) WithAttrs(as []slog.Attr) slog.Handler {
	for _, at := range as {
		h.attrs += fmt.Sprintf(" %s=%v", at.Key, at.Value)
	}
	return h
}

// WithGroup returns h: the lines are for people and show no groups.
func (h lines) WithGroup(string) slog.Handler { return h }
