package main

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/sandbox/backend"
	"github.com/recluse-dev/recluse/session"
)

// completeWait is the timeout of a completion, because a shell waits for it.
const completeWait = 2 * time.Second

// complete completes a word with what list returns: words, each with an optional note after a tab. It never starts a
// server: a key press must not.
func (a *app) complete(
	ctx context.Context,
	word string,
	list func(context.Context, *client.Client) ([]string, error),
) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(ctx, completeWait)
	defer cancel()
	words, err := a.listed(ctx, list)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return slices.DeleteFunc(
		words,
		func(w string) bool { return !strings.HasPrefix(w, word) },
	), cobra.ShellCompDirectiveNoFileComp
}

func (a *app) listed(
	ctx context.Context,
	list func(context.Context, *client.Client) ([]string, error),
) ([]string, error) {
	cfg, err := a.config()
	if err != nil {
		return nil, err
	}
	if cfg.Client.URL == "" {
		p, err := a.place()
		if err != nil {
			return nil, err
		}
		held, err := p.Find(ctx)
		if err != nil {
			return nil, err
		}
		defer held.Close()
	}
	c, done, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return list(ctx, c)
}

func sessionNames(ctx context.Context, c *client.Client) (names []string, err error) {
	for i, err := range c.List(ctx, session.ListOptions{}) {
		if err != nil {
			return names, err
		}
		names = append(names, i.Key.Name+"\t"+string(i.State))
	}
	return names, nil
}

// completeSession completes the value of a flag.
func (a *app) completeSession(c *cobra.Command, flag string) {
	_ = c.RegisterFlagCompletionFunc(
		flag,
		func(c *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
			return a.complete(c.Context(), word, sessionNames)
		},
	)
}

// completeEnums completes the values of all flags whose field has a list of valid values.
func completeEnums(c *cobra.Command) {
	c.Flags().VisitAll(func(f *pflag.Flag) {
		switch o, ok := f.Value.(option); {
		case ok && len(o.words()) > 0:
			completeWords(c, f.Name, o.words()...)
		case ok && o.field.Name == "Backends":
			completeWords(c, f.Name, slices.Concat(backend.Preference, backend.Paid)...)
		}
	})
	for _, sub := range c.Commands() {
		completeEnums(sub)
	}
}

// completeWords completes the value of a flag with words, and shows them as its value in help texts.
func completeWords(c *cobra.Command, flag string, words ...string) {
	err := c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // the verb does not have this flag
	}
	f := c.Flags().Lookup(flag)
	if _, ok := f.Value.(option); !ok {
		f.Value = choice{f.Value, words}
	}
}

// choice is a flag whose valid values are a few words. The verb checks them.
type choice struct {
	pflag.Value
	words []string
}

// Type returns the valid values, for help texts.
func (c choice) Type() string { return strings.Join(c.words, "|") }

// completeEnum is completeWords with the valid values of a field of T.
func completeEnum[T any](c *cobra.Command, flag, field string) {
	f, ok := reflect.TypeFor[T]().FieldByName(field)
	words := option{field: f}.words()
	if !ok || len(words) == 0 {
		panic("field without a list of valid values: " + field)
	}
	completeWords(c, flag, words...)
}

// sessionFirst completes the first argument with session names.
func (a *app) sessionFirst(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.complete(c.Context(), word, sessionNames)
}

// operationArgs completes the first argument with session names, and further ones with operations of that session.
func (a *app) operationArgs(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return a.sessionFirst(c, args, word)
	}
	return a.complete(c.Context(), word, func(ctx context.Context, c *client.Client) (ids []string, err error) {
		list, err := c.Session(args[0]).Operations(ctx)
		for _, o := range list {
			ids = append(ids, o.ID+"\t"+console.Clip(console.OneLine(o.Command), 40))
		}
		return ids, err
	})
}

// snapshotFirst completes the first argument with snapshots, as SESSION@NAME.
func (a *app) snapshotFirst(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.complete(c.Context(), word, func(ctx context.Context, c *client.Client) (refs []string, err error) {
		list, err := c.Snapshots(ctx, "")
		for _, s := range list {
			refs = append(refs, s.Session+"@"+s.Name)
		}
		return refs, err
	})
}
