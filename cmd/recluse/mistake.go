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

// usage is a mistake in how recluse was called. What to do about it is added by explain, which knows the verb.
func usage(format string, args ...any) error {
	return &v1.Error{Code: v1.CodeInvalidRequest, Message: fmt.Sprintf(format, args...)}
}

// noteRuns has every verb note that it was begun: cobra tells of mistakes in many ways, but of all of them before that. A verb that only
// has others below it prints its help, and refuses words: cobra looks at them only if the verb can run.
func (a *app) noteRuns(c *cobra.Command) {
	if c.HasSubCommands() && c.RunE == nil {
		c.Args, c.RunE = cobra.NoArgs, func(c *cobra.Command, _ []string) error { return c.Help() }
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

// explain gives the error of a wrong call, whoever found it, a code and a remedy.
func (a *app) explain(c *cobra.Command, args []string, err error) error {
	if _, silent := errors.AsType[exit](err); silent || err == nil || errors.Is(err, errPipe) {
		return err
	}
	if !a.begun {
		a.json = a.json || asksForJSON(args) // cobra reads no further than the first mistake
		if words := c.Flags().Args(); c.HasSubCommands() && len(words) > 0 {
			return unknownVerb(c, words[0]) // also if a flag was refused: nobody knows the flags of such a verb
		}
		if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
			if near := nearFlags(c, unknown.GetSpecifiedName()); len(near) > 0 {
				return &v1.Error{Code: v1.CodeInvalidRequest, Message: err.Error(), Remedy: "did you mean --" + strings.Join(near, " or --") + "? " + seeHelp(c)}
			}
		}
		err = usage("%v", err)
	}
	e, ok := err.(*v1.Error) //nolint:errorlint // what wraps one tells more than that the call was wrong
	if !ok || e.Code != v1.CodeInvalidRequest || e.Remedy != "" || e.Err != nil {
		return err
	}
	told := *e
	told.Remedy = "call it as " + c.UseLine() + "; " + seeHelp(c)
	return &told
}

// nearFlags returns the flags of a verb that an unknown one may have meant: those a slip or two away, or with the same beginning.
func nearFlags(c *cobra.Command, word string) (near []string) {
	const slips = 3 // and more is another word
	best := min(slips, len(word)/2+1)
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		d := editdistance.Distance(word, f.Name, slips)
		if len(word) >= 3 && strings.HasPrefix(f.Name, word) {
			d = 1
		}
		switch {
		case d >= slips || d > best:
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
	remedy := "known are " + strings.Join(known, ", ") + "; "
	if c.SuggestionsMinimumDistance = 2; len(c.SuggestionsFor(word)) > 0 {
		remedy = "did you mean " + strings.Join(c.SuggestionsFor(word), " or ") + "? "
	}
	return &v1.Error{
		Code: v1.CodeInvalidRequest, Message: fmt.Sprintf("unknown command %q for %q", word, c.CommandPath()), Remedy: remedy + seeHelp(c),
	}
}

func seeHelp(c *cobra.Command) string { return "see " + c.CommandPath() + " --help" }

// asksForJSON reports whether --json is among the words that are ours and not a command's.
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

// strictHelp makes the help verb refuse words that it does not know, as ours do.
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
