package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/session"
)

func (a *app) auditCommand() *cobra.Command {
	var (
		o     session.AuditOptions
		since moment
	)
	c := &cobra.Command{
		Use:   "audit",
		Short: "Print the audit log: who ran what, when, and how it ended",
		Long: `Print the audit log: who ran what, when, and how it ended.

The newest entry is last. With --json, each entry is one line.`,
		Example: `  recluse audit --since 2h
  recluse audit --limit 20
  recluse audit --session work --action command --json | jq .`,
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			if o.Last < 0 || o.After < 0 {
				return usage("--limit and --after must not be negative")
			}
			return nil
		},
		RunE: a.served(func(ctx context.Context, c *client.Client, _ []string) error {
			o.Since = since.time
			return a.audit(ctx, c, o)
		}),
	}
	f := c.Flags()
	f.StringVar(&o.Session, "session", "", "only entries of the session of this `name`")
	f.StringVar(&o.Actor, "actor", "", "only entries of this `name`: that of a key, or \"user NAME\"")
	f.StringVar(&o.Action, "action", "", "only entries with this `action`: open, cell, command, end, snapshot, …")
	f.Var(&since, "since", "only entries since this `time`, such as 2h, 7d, 2030-01-31 or \"2030-01-31 15:04\"")
	f.Int64Var(&o.After, "after", 0, "start after the entry with this `id`, which --json prints")
	f.IntVar(&o.Last, "limit", 0, "only the newest entries, at most this `number` (default all)")
	a.completeSession(c, "session")
	return c
}

// auditDetail is how much of the code or command of an entry is shown at least, in columns.
const auditDetail = 12

func (a *app) audit(ctx context.Context, c *client.Client, o session.AuditOptions) error {
	width := console.Width(a.stdout)
	for e, err := range c.Audit(ctx, o) {
		if err != nil {
			return err
		}
		if a.json {
			if err := console.WriteLine(a.stdout, e); err != nil {
				return err
			}
			continue
		}
		if _, err := fmt.Fprintln(a.stdout, auditLine(e, width)); err != nil {
			return err
		}
	}
	return nil
}

// auditLine returns an entry as a line of text, with the detail clipped to the width.
func auditLine(e session.Entry, width int) string {
	head := fmt.Sprintf(
		"%s %-10s %-10s %-8s %-8s ",
		e.Time.Local().Format(time.DateTime),
		e.Actor,
		e.Session,
		e.Action,
		cmp.Or(e.Error, e.Verdict),
	)
	return console.OneLine(head + console.Clip(e.Detail, max(auditDetail, width-len([]rune(head)))))
}

// moment is a point in time as a flag: a duration before now, or a date with or without a time of day.
type moment struct {
	text string
	time time.Time
}

// String returns the text of the flag.
func (m *moment) String() string { return m.text }

// Type returns the name of the value in help texts.
func (*moment) Type() string { return "time" }

// Set parses a duration or a time.
func (m *moment) Set(text string) error {
	m.text = text
	layouts := []string{
		time.RFC3339, time.DateTime, "2006-01-02T15:04:05", "2006-01-02 15:04", "2006-01-02T15:04", time.DateOnly,
	}
	for _, layout := range layouts {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			m.time = t
			return nil
		}
	}
	d, err := v1.ParseDuration(text)
	if err != nil || d <= 0 {
		return fmt.Errorf("invalid time %q: want a duration above zero, such as 2h or 7d, "+
			"or a time, such as 2030-01-31 or 2030-01-31T15:04:05Z", text)
	}
	m.time = time.Now().Add(-d.Std())
	return nil
}
