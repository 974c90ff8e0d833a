package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/session"
)

func (a *app) sessionCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "session",
		Short: "Open, list, show, extend, hibernate and end sessions",
		Long: `Open, list, show, extend, hibernate and end sessions.

A session is a sandbox with a name that you choose. Every command with that name finds the
same Python variables, files and processes, until the session is ended or expires. A
session that is not used is hibernated, that is written to disk. The next use wakes it.`,
		Example: `  recluse exec --session work --python 'x = 41'
  recluse session list
  recluse session extend work --for 30m
  recluse session end work`,
	}
	c.AddCommand(
		a.sessionOpenCommand(), a.sessionListCommand(), a.sessionShowCommand(), a.sessionExtendCommand(),
		a.sessionEndCommand(),
		a.sessionChange("pause", "Freeze sessions in memory",
			"  recluse session pause work\n  recluse session resume work", (*client.Session).Pause),
		a.sessionChange("hibernate", "Write sessions to disk and free their memory",
			"  recluse session hibernate work\n  recluse exec --session work --python 'x'   # wakes it",
			(*client.Session).Hibernate),
		a.sessionChange("resume", "Continue paused or hibernated sessions",
			"  recluse session resume work", (*client.Session).Resume),
		a.sessionRestartInterpreterCommand(), a.varsCommand(), a.eventsCommand(),
	)
	return c
}

func (a *app) sessionOpenCommand() *cobra.Command {
	var (
		sandbox sandboxFlags
		o       session.OpenOptions
		onIdle  string
	)
	c := &cobra.Command{
		Use:   "open NAME",
		Short: "Open a session; create it if it does not exist",
		Long: `Open a session; create it if it does not exist.

exec, shell and cp also create a session if it does not exist. session open can set how
long it lives and what it starts with. If the session exists, the given settings must be
the same as when it was created, except --label and --var, which are ignored then.`,
		Example: `  recluse session open work --memory 2g --expires 8h --label team=web
  recluse session open copy --from work@warm
  recluse session open work --new          # fail if it exists`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.sessionFirst,
		RunE: func(c *cobra.Command, args []string) error {
			o.Policy.OnIdle = v1.IdleAction(onIdle)
			o, err := a.openOptions(&sandbox, o)
			if err != nil {
				return err
			}
			if sandbox.given("command") != "" { // here these flags apply to every command in the session
				spec, err := sandbox.spec(a)
				if err != nil {
					return err
				}
				o.Spec = &spec
			}
			return a.served(func(ctx context.Context, c *client.Client, args []string) error {
				_, opened, err := c.Open(ctx, args[0], a.withLimits(o))
				if err != nil {
					return err
				}
				a.noticeOpened(opened)
				return a.printSession(opened.Session)
			})(c, args)
		},
	}
	f := c.Flags()
	f.Var(&o.Policy.Idle, "idle", "idle timeout, renewed by each use; none: never idle (default as configured, 15m)")
	f.StringVar(&onIdle, "on-idle", "",
		"action after the idle timeout (default as configured; end if the backend cannot hibernate)")
	f.Var(&o.Policy.Expires, "expires",
		"time from now to the expiry, however the session is used; recluse session extend moves it (default never)")
	f.Var(&o.Policy.Expires, "ttl", "old name of --expires")
	f.Lookup("ttl").Hidden = true
	f.Var(valueOf(&o.Policy.Output), "output",
		"`size` of the output that all cells and commands together may produce (default as configured, 10 GiB)")
	f.Var((*labelFlags)(&o.Labels), "label", "label of a new session (repeatable)")
	f.StringVar(&o.From, "from", "", "`snapshot` to start from, as SESSION@NAME")
	f.Var(valueOf(&o.Vars), "var", "variable of a new session (repeatable)")
	f.BoolVar(&o.New, "new", false, "fail if the session exists")
	f.StringVar(&o.Gate, "gate", "", "gate mode (default as configured)")
	f.StringVar(&o.Role, "role", "", "`role` whose thesaurus the gate uses")
	sandbox.register(f)
	completeEnum[v1.Policy](c, "on-idle", "OnIdle")
	completeEnum[v1.GateRequest](c, "gate", "Rules")
	return c
}

func (a *app) sessionListCommand() *cobra.Command {
	var (
		all    bool
		labels labelFlags
	)
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List sessions",
		Long:    "List sessions by name.\n\nListing a session is not a use: it does not renew the idle timeout.",
		Example: `  recluse session list
  recluse session list --all     # include ended and expired sessions
  recluse session list --label team=web
  recluse session list --json`,
		Args: cobra.NoArgs,
		RunE: a.served(func(ctx context.Context, c *client.Client, _ []string) error {
			o := session.ListOptions{Labels: labels}
			if all {
				o.States = everyState
			}
			return a.sessionList(ctx, c, o)
		}),
	}
	c.Flags().BoolVar(&all, "all", false, "include ended and expired sessions")
	c.Flags().Var(&labels, "label", "only sessions with this label; repeat to require several")
	return c
}

// everyState selects all sessions, including ended ones.
var everyState = []session.State{
	v1.StateCreating,
	v1.StateReady,
	v1.StateExecuting,
	v1.StatePaused,
	v1.StateHibernated,
	v1.StateLost,
	v1.StateEnding,
	v1.StateEnded,
	v1.StateExpired,
}

func (a *app) sessionList(ctx context.Context, c *client.Client, o session.ListOptions) error {
	infos := []session.Info{}
	for i, err := range c.List(ctx, o) {
		if err != nil {
			return err
		}
		infos = append(infos, i)
	}
	if len(infos) == 0 && !a.json {
		a.notice("no sessions; recluse exec --session NAME creates one")
		return nil
	}
	return a.resultTable(infos, sessionRows(infos))
}

func sessionRows(infos []session.Info) [][]string {
	rows := [][]string{{"NAME", "STATE", "AGE", "UNUSED", "ENDS IN", "RUN", "SNAP", "WHY"}}
	for _, i := range infos {
		ends := console.Ahead(i.Expires)
		if i.Ended != nil {
			ends = "-"
		}
		rows = append(rows, []string{
			i.Key.Name,
			string(i.State),
			console.Ago(i.Created),
			console.Ago(i.Used),
			ends,
			fmt.Sprint(i.Running),
			fmt.Sprint(i.Snapshots),
			i.Reason,
		})
	}
	if slices.ContainsFunc(infos, func(i session.Info) bool { return i.Cost > 0 }) {
		rows[0] = slices.Insert(rows[0], len(rows[0])-1, "COST")
		for n, i := range infos {
			rows[n+1] = slices.Insert(rows[n+1], len(rows[n+1])-1, dollars(i.Cost))
		}
	}
	return rows
}

// dollars returns an estimated cost for people.
func dollars(usd float64) string {
	if usd == 0 {
		return "-"
	}
	return fmt.Sprintf("$%.4f", usd)
}

func (a *app) sessionShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "show NAME",
		Short:             "Show a session",
		Long:              "Show a session: its state, sandbox, limits, lifetimes and incidents.",
		Example:           "  recluse session show work\n  recluse session show work --json",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.sessionFirst,
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			_, i, err := c.Get(ctx, args[0])
			if err != nil {
				return err
			}
			return a.printSession(i)
		}),
	}
}

func (a *app) printSession(i session.Info) error {
	if a.json {
		return console.WriteJSON(a.stdout, i)
	}
	p := console.NewPaint(a.stdout)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(a.stdout, "%s%-11s%s %s\n", p.Bold, name, p.Off, console.OneLine(fmt.Sprintf(format, args...)))
	}
	line("session", "%s (%s)", i.Key.Name, i.ID)
	line("state", "%s: %s", i.State, i.Reason)
	line("sandbox", "%s %s", i.Backend, cmp.Or(i.Sandbox, "-"))
	l := i.Spec.Limits
	line("limits", "%s memory, %v cpus, %d processes", v1.SizeText(l.Memory), l.CPUs, l.Processes)
	line("disk", "%s, %d files", v1.SizeText(l.Disk), l.Files())
	line("network", "%s", i.Spec.Network)
	for n, rule := range i.NetworkRules {
		if n > len(i.Spec.Network.Rules) { // of a maximum; the others are in the line before
			line("", "%s", rule)
		}
	}
	for _, o := range optionsOf(&i.Spec) {
		if o.word != "" || o.name() == "net" {
			continue
		}
		if kind := o.value.Kind(); (kind == reflect.String || kind == reflect.Slice) && !o.value.IsZero() {
			line(o.name(), "%s", o)
		}
	}
	if len(i.Labels) > 0 {
		line("labels", "%s", pairs(i.Labels))
	}
	line("created", "%s (%s ago)", i.Created.Local().Format(time.DateTime), console.Ago(i.Created))
	line("used", "%s (%s ago)", i.Used.Local().Format(time.DateTime), console.Ago(i.Used))
	if i.Ended != nil {
		line("ended", "%s", i.Ended.Local().Format(time.DateTime))
	} else {
		line("expires", "%s", inTime(i.Expires))
		if i.IdleAt != nil {
			line("idle", "%s: %s", inTime(i.IdleAt), i.Policy.OnIdle)
		}
	}
	line("running", "%d", i.Running)
	line("output", "%s of %s", console.Bytes(i.Output), console.Bytes(i.Policy.Output))
	line("snapshots", "%d of %d", i.Snapshots, i.Policy.Snapshots)
	if i.StateFrom != nil {
		line("restored", "the sandbox was lost; the state is that of %s", i.StateFrom.Local().Format(time.DateTime))
	}
	if i.Previous != nil {
		line("previous", "previous session of this name %s", i.Previous)
	}
	for _, n := range i.Incidents {
		line("incident", "%s (%s, %s)", n.Message, n.Code, n.Time.Local().Format(time.DateTime))
	}
	return nil
}

// inTime returns how far away a moment is, such as "in 5m".
func inTime(t *time.Time) string {
	if t == nil {
		return "never"
	}
	return "in " + console.Ahead(t)
}

// pairs returns labels in one line, sorted.
func pairs(m map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+"="+m[k])
	}
	return strings.Join(out, " ")
}

func (a *app) sessionExtendCommand() *cobra.Command {
	var by v1.Duration
	c := &cobra.Command{
		Use:   "extend NAME",
		Short: "Move the expiry of a session",
		Long: `Move the expiry of a session.

The new expiry is the given time from now, or from the current expiry if that is later.
The expiry can be moved any number of times, but not beyond the operator's max_age.
A session without an expiry is not changed.`,
		Example:           "  recluse session extend work --for 30m",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.sessionFirst,
		PreRunE: func(*cobra.Command, []string) error {
			if by == v1.NoLimit {
				return usage("--for: want a duration; for a session without an expiry, open it without --expires")
			}
			return nil
		},
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			i, err := c.Session(args[0]).Extend(ctx, by.Std())
			if err != nil {
				return err
			}
			if i.Expires == nil {
				return a.result(i, "%s does not expire\n", args[0])
			}
			return a.result(i, "%s expires in %s\n", args[0], console.Ahead(i.Expires))
		}),
	}
	c.Flags().Var(&by, "for",
		"time from now, or from the current expiry, to the new one (default "+
			""+v1.Duration(session.DefaultExtension).String()+")")
	return c
}

func (a *app) sessionEndCommand() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "end NAME...",
		Short: "End sessions",
		Long: `End sessions and everything that runs in them.

Their names can be used again at once. Their snapshots stay. If a session does not exist,
the others are ended, and the error is session_not_found.`,
		Example:           "  recluse session end work\n  recluse session end --all",
		ValidArgsFunction: a.sessionFirst,
		Args: func(_ *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return usage("give names of sessions, or --all")
			}
			return nil
		},
		RunE: a.served(a.sessionEnd),
	}
	c.Flags().BoolVar(&all, "all", false, "end all sessions")
	return c
}

// sessionEnd ends the named sessions, or all sessions if names is empty.
func (a *app) sessionEnd(ctx context.Context, c *client.Client, names []string) error {
	all := len(names) == 0
	if all {
		for i, err := range c.List(ctx, session.ListOptions{}) {
			if err != nil {
				return err
			}
			names = append(names, i.Key.Name)
		}
	}
	ended, errs := []string{}, []error{}
	for _, name := range names {
		switch err := c.Session(name).End(ctx, "recluse session end"); {
		case err == nil:
			ended = append(ended, name)
		case !all || !gone(err): // a listed session may have expired meanwhile
			errs = append(errs, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return a.printEnded(ended, errs, "")
}

func (a *app) sessionRestartInterpreterCommand() *cobra.Command {
	var interpreter string
	c := &cobra.Command{
		Use:   "restart-interpreter NAME",
		Short: "Restart the Python interpreter of a session",
		Long: `Restart the Python interpreter of a session.

The interpreter ends, with its Python variables and all processes that its cells started.
The next cell starts a new one. Files, commands and other interpreters are not affected.`,
		Example: `  recluse session restart-interpreter work
  recluse session restart-interpreter work --context plots`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.sessionFirst,
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			name := cmp.Or(interpreter, v1.DefaultContext)
			err := c.Session(args[0]).CloseContext(ctx, name)
			if v1.CodeOf(err) == v1.CodeNotFound && interpreter == "" {
				err = nil // no cell has run yet, or the interpreter has died: the next cell starts a new one anyway
			}
			if err != nil {
				return err
			}
			return a.result(map[string]string{"session": args[0], "context": name}, "")
		}),
	}
	c.Flags().StringVar(&interpreter, "context", "", "`name` of the interpreter (default \""+v1.DefaultContext+"\")")
	return c
}

// sessionChange returns a verb that calls do for each named session and prints the new state.
func (a *app) sessionChange(
	verb, short, example string,
	do func(*client.Session, context.Context) error,
) *cobra.Command {
	return &cobra.Command{
		Use:               verb + " NAME...",
		Short:             short,
		Example:           example,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.sessionFirst,
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			infos, lines := []session.Info{}, ""
			for _, name := range args {
				s := c.Session(name)
				done := a.saving(verb, s)
				err := do(s, ctx)
				done()
				if err != nil {
					return err
				}
				i, err := s.Info(ctx)
				if err != nil {
					return err
				}
				infos = append(infos, i)
				lines += fmt.Sprintf("%s %s\n", i.Key.Name, i.State)
			}
			return a.result(infos, "%s", lines)
		}),
	}
}

func (a *app) varsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "vars",
		Short: "Read and write variables of a session",
		Long: `Read and write variables of a session.

A variable is a text that the server stores with the session, also while the session is
hibernated. Code in the session does not see it: it is not a Python variable.`,
		Example: `  recluse session vars set work goal='write tests' branch=main
  recluse session vars get work goal
  recluse session vars list work
  recluse session vars delete work goal`,
	}
	type action func(ctx context.Context, s *client.Session, args []string) error
	with := func(do action) func(*cobra.Command, []string) error {
		return a.served(func(ctx context.Context, c *client.Client, args []string) error {
			return do(ctx, c.Session(args[0]), args[1:])
		})
	}
	c.AddCommand(
		&cobra.Command{
			Use:     "list NAME",
			Short:   "List the variables of a session",
			Example: "  recluse session vars list work",
			Args:    cobra.ExactArgs(1),
			RunE:    with(a.varsList),
		},
		&cobra.Command{
			Use:     "get NAME KEY",
			Short:   "Print a variable of a session",
			Example: "  recluse session vars get work goal",
			Args:    cobra.ExactArgs(2),
			RunE:    with(a.varsGet),
		},
		&cobra.Command{
			Use:     "set NAME KEY=VALUE...",
			Short:   "Set variables of a session",
			Example: "  recluse session vars set work goal='write tests'",
			Args:    cobra.MinimumNArgs(2),
			RunE:    with(a.varsSet),
		},
		&cobra.Command{
			Use:     "delete NAME KEY...",
			Short:   "Delete variables of a session",
			Example: "  recluse session vars delete work goal",
			Args:    cobra.MinimumNArgs(2),
			RunE:    with(a.varsDelete),
		},
	)
	for _, sub := range c.Commands() {
		sub.ValidArgsFunction = a.sessionFirst
	}
	return c
}

func (a *app) varsList(ctx context.Context, s *client.Session, _ []string) error {
	vars, err := s.Vars(ctx)
	if err != nil {
		return err
	}
	lines := ""
	for _, k := range slices.Sorted(maps.Keys(vars)) {
		lines += k + "=" + vars[k] + "\n"
	}
	return a.result(vars, "%s", lines)
}

func (a *app) varsGet(ctx context.Context, s *client.Session, args []string) error {
	v, err := s.Var(ctx, args[0])
	if err != nil {
		return err
	}
	return a.result(map[string]string{args[0]: v}, "%s\n", v)
}

func (a *app) varsSet(ctx context.Context, s *client.Session, args []string) error {
	for _, arg := range args {
		if _, _, ok := strings.Cut(arg, "="); !ok {
			return usage("invalid variable %q: want KEY=VALUE", arg)
		}
	}
	for _, arg := range args {
		k, v, _ := strings.Cut(arg, "=")
		if err := s.SetVar(ctx, k, v); err != nil {
			return err
		}
	}
	return a.varsChanged(ctx, s)
}

func (a *app) varsDelete(ctx context.Context, s *client.Session, args []string) error {
	for _, k := range args {
		if err := s.DeleteVar(ctx, k); err != nil {
			return err
		}
	}
	return a.varsChanged(ctx, s)
}

// varsChanged prints all variables if --json is given.
func (a *app) varsChanged(ctx context.Context, s *client.Session) error {
	if !a.json {
		return nil
	}
	return a.varsList(ctx, s, nil)
}

func (a *app) eventsCommand() *cobra.Command {
	var (
		follow bool
		after  int64
	)
	c := &cobra.Command{
		Use:               "events NAME",
		Short:             "Print the events of a session",
		Long:              "Print the events of a session, oldest first.\n\nWith --json, each event is one line.",
		Example:           "  recluse session events work\n  recluse session events work --follow --json",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.sessionFirst,
		RunE: a.served(func(ctx context.Context, c *client.Client, args []string) error {
			for e, err := range c.Session(args[0]).Events(ctx, session.EventsOptions{After: after, Follow: follow}) {
				if err != nil {
					return untilSignal(ctx, err)
				}
				if err := a.printEvent(e); err != nil {
					return err
				}
			}
			return nil
		}),
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "continue to print events as they happen")
	c.Flags().Int64Var(&after, "after", 0, "`number` of the event after which to start")
	return c
}

func (a *app) printEvent(e session.Event) error {
	if a.json {
		return console.WriteLine(a.stdout, e)
	}
	parts := []string{fmt.Sprintf("%5d", e.Seq), e.Time.Local().Format(time.DateTime), fmt.Sprintf("%-10s", e.Kind)}
	for _, p := range []string{string(e.State), e.Op, e.Reason} {
		if p != "" {
			parts = append(parts, p)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(e.Attrs)) {
		parts = append(parts, k+"="+e.Attrs[k])
	}
	_, err := fmt.Fprintln(a.stdout, console.OneLine(strings.Join(parts, " ")))
	return err
}
