package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/editdistance"
)

// usage returns the error of an invalid call. explain adds the remedy, because it knows the verb.
func usage(format string, args ...any) error {
	return &v1.Error{Code: v1.CodeInvalidRequest, Message: fmt.Sprintf(format, args...)}
}

// noteRuns makes every verb set begun before it runs. cobra reports invalid calls in many ways, but always before that.
// A verb that only has subcommands is made to print its help and to refuse arguments: cobra checks arguments only of
// verbs that can run.
func (a *app) noteRuns(c *cobra.Command) {
	if c.HasSubCommands() && c.RunE == nil {
		c.Args, c.RunE = cobra.NoArgs, func(c *cobra.Command, _ []string) error { return c.Help() }
		c.Annotations = map[string]string{onlySubcommands: "true"}
	}
	if run := c.RunE; run != nil {
		c.RunE = func(c *cobra.Command, args []string) error {
			a.begun = true
			return run(c, args)
		}
	}
	for _, sub := range c.Commands() {
		a.noteRuns(sub)
	}
}

// explain adds a code and a remedy to the error of an invalid call, whether cobra or the verb found it.
func (a *app) explain(c *cobra.Command, args []string, err error) error {
	if _, silent := errors.AsType[exit](err); silent || err == nil || errors.Is(err, errPipe) {
		return err
	}
	if !a.begun {
		a.json = a.json || asksForJSON(args) // cobra stops parsing at the first invalid argument
		if words := c.Flags().Args(); c.HasSubCommands() && len(words) > 0 {
			return unknownVerb(c, words[0]) // also if a flag was refused: an unknown verb has no flags
		}
		if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
			if near := nearFlags(c, unknown.GetSpecifiedName()); len(near) > 0 {
				return &v1.Error{
					Code:    v1.CodeInvalidRequest,
					Message: err.Error(),
					Remedy:  "did you mean --" + strings.Join(near, " or --") + "? " + seeHelp(c),
				}
			}
		}
		err = usage("%v", err)
	}
	e, ok := err.(*v1.Error) //nolint:errorlint // an error that wraps one has its own remedy
	if !ok || e.Code != v1.CodeInvalidRequest || e.Remedy != "" || e.Err != nil {
		return err
	}
	explained := *e
	explained.Remedy = "usage: " + c.UseLine() + "; " + seeHelp(c)
	return &explained
}

// nearFlags returns the flags of a verb that the user may have meant by an unknown one: those with an edit distance of
// at most two, or that begin with it.
func nearFlags(c *cobra.Command, word string) (near []string) {
	const limit = 3 // an edit distance from which on a flag is unrelated
	best := min(limit, len(word)/2+1)
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		d := editdistance.Distance(word, f.Name, limit)
		if len(word) >= 3 && strings.HasPrefix(f.Name, word) {
			d = 1
		}
		switch {
		case d >= limit || d > best:
		case d < best:
			best, near = d, []string{f.Name}
		default:
			near = append(near, f.Name)
		}
	})
	return near
}

func unknownVerb(c *cobra.Command, word string) error {
	var known []string
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			known = append(known, sub.Name())
		}
	}
	remedy := "use one of " + strings.Join(known, ", ") + "; "
	if c.SuggestionsMinimumDistance = 2; len(c.SuggestionsFor(word)) > 0 {
		remedy = "did you mean " + strings.Join(c.SuggestionsFor(word), " or ") + "? "
	}
	return &v1.Error{
		Code:    v1.CodeInvalidRequest,
		Message: fmt.Sprintf("unknown command %q for %q", word, c.CommandPath()),
		Remedy:  remedy + seeHelp(c),
	}
}

func seeHelp(c *cobra.Command) string { return "see " + c.CommandPath() + " --help" }

// asksForJSON reports whether --json is among the arguments before --, which are for recluse.
func asksForJSON(args []string) bool {
	for _, word := range args {
		switch word {
		case "--":
			return false
		case "--json", "--json=true":
			return true
		}
	}
	return false
}

// strictHelp makes the help verb refuse unknown arguments, as our own verbs do.
func strictHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	help, _, err := root.Find([]string{"help"})
	if err != nil {
		return
	}
	help.Args = func(_ *cobra.Command, words []string) error {
		verb, rest, err := root.Find(words)
		if err != nil {
			return err
		}
		return cobra.NoArgs(verb, rest)
	}
}
