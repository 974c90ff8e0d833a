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

// besideResult is what failed in a verb that has printed its result all the same.
type besideResult struct{ error }

// Unwrap returns what failed.
func (b besideResult) Unwrap() error { return b.error }

// beside returns how a verb ends that has printed its result, unless printing failed, and of which a part failed, unless that is nil.
func beside(printing, failed error) error {
	if printing != nil || failed == nil {
		return printing
	}
	return besideResult{failed}
}

// single returns the errors that were joined, or the error itself.
func single(err error) []error {
	if b, ok := errors.AsType[besideResult](err); ok {
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

// report tells why there is no result, or not all of one. With --json stdout has one value: the result, or else the first error.
func (a *app) report(err error) {
	_, printed := errors.AsType[besideResult](err)
	for i, e := range single(err) {
		e = a.readable(e)
		if i > 0 || printed || !a.json || console.WriteJSON(a.stdout, map[string]any{"error": console.NewFailure(e)}) != nil {
			a.tell(e)
		}
	}
}

// readable returns an error as its reader may see it. A person learns how to let refused code run; a model does not.
func (a *app) readable(err error) error {
	if a.modelReads() {
		return v1.ForModel(err)
	}
	return err
}

// modelReads reports whether a model reads what we print.
func (a *app) modelReads() bool { return a.forModel || agents.Inside(os.Getenv) }

// tell says on stderr what went wrong: what, why, and on a line of its own what to do.
func (a *app) tell(err error) {
	remedy, err := v1.SplitRemedy(a.readable(err))
	what, causes := err.Error(), []string(nil)
	if e, ok := err.(*v1.Error); ok { //nolint:errorlint // a wrapped one is told by what wraps it
		what = cmp.Or((&console.Failure{Op: e.Op, Message: e.Message}).String(), string(e.Code))
		if e.Err != nil {
			causes = strings.Split(strings.TrimSpace(e.Err.Error()), "\n")
		}
	}
	if len(causes) == 1 {
		what, causes = what+": "+causes[0], nil
	}
	a.say("%s", what)
	for _, c := range causes {
		fmt.Fprintf(a.stderr, "  %s\n", c)
	}
	if remedy != "" {
		fmt.Fprintf(a.stderr, "  remedy: %s\n", remedy)
	}
}

// say prints one line of our own on stderr.
func (a *app) say(format string, args ...any) {
	fmt.Fprintf(a.stderr, "recluse: "+format+"\n", args...)
}

// logger hands warnings of the packages below to the user, one line each.
func (a *app) logger() *slog.Logger { return slog.New(lines{a: a}) }

// lines is a slog.Handler that prints as say does.
type lines struct {
	a     *app
	attrs string
}

// Enabled lets warnings and errors through.
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
	h.a.say("%s: %s%s", word, r.Message, attrs)
	return nil
}

// WithAttrs keeps attributes for every record.
func (h lines) WithAttrs(as []slog.Attr) slog.Handler {
	for _, at := range as {
		h.attrs += fmt.Sprintf(" %s=%v", at.Key, at.Value)
	}
	return h
}

// WithGroup changes nothing: the lines are for people.
func (h lines) WithGroup(string) slog.Handler { return h }
