package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/recluse-dev/recluse/internal/console"
)

// backendOnly is the annotation of a flag that only one backend supports. Its value is the backend's name.
const backendOnly = "backend"

// help prints the help of a verb. It replaces cobra's, whose lines have any width.
func (a *app) help(c *cobra.Command, _ []string) {
	_, a.helpFailed = io.WriteString(a.stdout, helpText(c))
}

// helpText returns the help of a verb, in lines of at most console.DefaultWidth columns. It lists the flags of a single
// backend only if --backend names that backend.
func helpText(c *cobra.Command) string {
	var b strings.Builder
	about := c.Long
	if about == "" {
		about = c.Short
	}
	fmt.Fprintln(&b, console.Wrap(about, console.DefaultWidth))
	fmt.Fprintf(&b, "\nUsage:\n")
	if c.Runnable() {
		fmt.Fprintf(&b, "  %s\n", c.UseLine())
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "  %s [command]\n", c.CommandPath())
	}
	if len(c.Aliases) > 0 {
		fmt.Fprintf(&b, "\nAliases:\n  %s\n", c.NameAndAliases())
	}
	if c.HasExample() {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", c.Example)
	}
	helpVerbs(&b, c)
	helpFlags(&b, c)
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\nMore about a command: %s COMMAND --help\n", c.CommandPath())
	}
	return b.String()
}

// helpVerbs lists the subcommands of a verb, by group.
func helpVerbs(b *strings.Builder, c *cobra.Command) {
	groups := c.Groups()
	if c.HasAvailableSubCommands() {
		groups = append(slices.Clone(groups), &cobra.Group{Title: "Commands:"})
	}
	for _, g := range groups {
		title := "\n" + g.Title + "\n"
		for _, sub := range c.Commands() {
			if sub.GroupID != g.ID || !sub.IsAvailableCommand() && sub.Name() != "help" {
				continue
			}
			fmt.Fprintf(b, "%s  %-*s %s\n", title, sub.NamePadding(), sub.Name(), sub.Short)
			title = ""
		}
	}
}

// helpFlags lists the flags of a verb.
func helpFlags(b *strings.Builder, c *cobra.Command) {
	local := pflag.NewFlagSet("", pflag.ContinueOnError)
	local.SortFlags = c.Flags().SortFlags
	chosen := ""
	if f := c.Flags().Lookup("backend"); f != nil {
		chosen = f.Value.String()
	}
	shown, omitted := map[string]*pflag.FlagSet{}, []string{} // flags, and names, of single backends
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		only := f.Annotations[backendOnly]
		switch {
		case f.Hidden:
		case len(only) == 0:
			local.AddFlag(f)
		case slices.Contains(strings.FieldsFunc(chosen, notLetter), only[0]):
			if shown[only[0]] == nil {
				shown[only[0]] = pflag.NewFlagSet("", pflag.ContinueOnError)
			}
			shown[only[0]].AddFlag(f)
		case !slices.Contains(omitted, only[0]):
			omitted = append(omitted, only[0])
		}
	})
	list := func(title string, f *pflag.FlagSet) {
		if f.HasAvailableFlags() {
			fmt.Fprintf(b, "\n%s\n%s\n", title, strings.TrimRight(f.FlagUsagesWrapped(console.DefaultWidth), " \n"))
		}
	}
	list("Flags:", local)
	for name, flags := range shown {
		list("Flags of the "+name+" backend:", flags)
	}
	for _, name := range omitted {
		fmt.Fprintf(b, "\nFlags of the %s backend: %s --help --backend %s\n", name, c.CommandPath(), name)
	}
	list("Global flags:", c.InheritedFlags())
}

func notLetter(r rune) bool { return r == ',' || r == ' ' }
