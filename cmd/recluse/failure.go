package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// report tells why there is no result. With --json that is the one value on stdout, and stderr stays silent.
func (a *app) report(err error) {
	if a.json && writeJSON(a.stdout, map[string]any{"error": failureOf(err)}) == nil {
		return
	}
	a.tell(err)
}

// tell says on stderr what went wrong: what, why, and on a line of its own what to do.
func (a *app) tell(err error) {
	remedy, err := v1.SplitRemedy(err)
	e, ok := err.(*v1.Error) //nolint:errorlint // a wrapped one is told by what wraps it
	if !ok {
		a.say("%v", err)
		return
	}
	var line strings.Builder
	for _, part := range []string{e.Op, e.Message} {
		if part != "" {
			if line.Len() > 0 {
				line.WriteString(": ")
			}
			line.WriteString(part)
		}
	}
	if line.Len() == 0 {
		line.WriteString(string(e.Code))
	}
	var causes []string
	if e.Err != nil {
		causes = strings.Split(strings.TrimSpace(e.Err.Error()), "\n")
	}
	if len(causes) == 1 {
		line.WriteString(": " + causes[0])
		causes = nil
	}
	a.say("%s", line.String())
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

// failure is an error as JSON.
type failure struct {
	Code    v1.Code `json:"code"`
	Op      string  `json:"op,omitempty"`
	Message string  `json:"message"`
	Remedy  string  `json:"remedy,omitempty"`
	Retry   bool    `json:"retry"`
	Cause   string  `json:"cause,omitempty"`
}

func failureOf(err error) failure {
	e, ok := errors.AsType[*v1.Error](err)
	if !ok {
		return failure{Code: v1.CodeOf(err), Message: err.Error()}
	}
	f := failure{Code: e.Code, Op: e.Op, Message: e.Message, Retry: e.Retry}
	remedy, cause := v1.SplitRemedy(e.Err)
	f.Remedy = cmp.Or(e.Remedy, remedy)
	if cause != nil {
		f.Cause = cause.Error()
	}
	return f
}

// writeJSON prints one value, indented, as people read it too.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// writeLine prints one value on a line of its own, for lists without an end.
func writeLine(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
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
