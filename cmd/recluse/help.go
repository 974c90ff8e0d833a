package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/recluse-dev/recluse/internal/console"
)

// Annotations of flags.
const (
	backendOnly = "backend" // the name of the only backend that supports the flag
	flagGroup   = "group"   // the title under which help lists the flag
)

// onlySubcommands is the annotation of a verb that does nothing without a subcommand.
const onlySubcommands = "only-subcommands"

// Groups of flags in help texts.
const (
	groupRun     = "Limits of the run:"
	groupQuota   = "Quota:"
	groupSession = "Session:"
	groupOutput  = "Output:"
	groupLimits  = "Limits:"
	groupNetwork = "Network:"
	groupSandbox = "Sandbox:"
	groupBackend = "Backend:"
)

// flagGroups lists the groups in the order in which help shows them. Flags without a group are the first.
var flagGroups = []string{
	"", groupRun, groupQuota, groupSession, groupOutput, groupLimits, groupNetwork, groupSandbox, groupBackend,
}

// setGroup puts flags into a group.
func setGroup(f *pflag.FlagSet, group string, names ...string) {
	for _, name := range names {
		flag := f.Lookup(name)
		if flag.Annotations == nil {
			flag.Annotations = map[string][]string{}
		}
		flag.Annotations[flagGroup] = []string{group}
	}
}

// help prints the help of a verb. It replaces cobra's, whose lines have any width.
func (a *app) help(c *cobra.Command, _ []string) {
	_, a.helpFailed = io.WriteString(a.stdout, helpText(c))
}

// helpText returns the help of a verb, in lines of at most console.DefaultWidth columns: the first paragraph of its
// long text, usage, examples, subcommands, the rest of the long text and the flags. It lists the flags of a single
// backend only if --backend names that backend.
func helpText(c *cobra.Command) string {
	var b strings.Builder
	summary, details, _ := strings.Cut(c.Long, "\n\n")
	if summary == "" {
		summary = c.Short + "."
	}
	fmt.Fprintln(&b, console.Wrap(summary, console.DefaultWidth))
	fmt.Fprintf(&b, "\nUsage:\n")
	if c.Runnable() && c.Annotations[onlySubcommands] == "" {
		fmt.Fprintf(&b, "  %s\n", c.UseLine())
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "  %s COMMAND\n", c.CommandPath())
	}
	if len(c.Aliases) > 0 {
		fmt.Fprintf(&b, "\nAliases:\n  %s\n", c.NameAndAliases())
	}
	if c.HasExample() {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", c.Example)
	}
	helpVerbs(&b, c)
	if details != "" {
		fmt.Fprintf(&b, "\n%s\n", console.Wrap(details, console.DefaultWidth))
	}
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

// helpFlags lists the flags of a verb by group.
func helpFlags(b *strings.Builder, c *cobra.Command) {
	local := map[string]*pflag.FlagSet{} // by group
	for _, g := range flagGroups {
		local[g] = pflag.NewFlagSet("", pflag.ContinueOnError)
		local[g].SortFlags = c.Flags().SortFlags
	}
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
			local[strings.Join(f.Annotations[flagGroup], "")].AddFlag(f)
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
	for _, g := range flagGroups {
		list(cmp.Or(g, "Flags:"), local[g])
	}
	for name, flags := range shown {
		list("Flags of the "+name+" backend:", flags)
	}
	for _, name := range omitted {
		fmt.Fprintf(b, "\nFlags of the %s backend: %s --help --backend %s\n", name, c.CommandPath(), name)
	}
	list("Global flags:", c.InheritedFlags())
}

func notLetter(r rune) bool { return r == ',' || r == ' ' }
