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
		Short: "Print who ran what when, and how it ended",
		Long:  "Print the audit log, the newest entry last. With --json each entry is one line.",
		Example: `  recluse audit --since 2h
  recluse audit --limit 20
  recluse audit --session work --action command --json | jq .`,
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			if o.Last < 0 || o.After < 0 {
				return usage("--limit and --after are not negative")
			}
			return nil
		},
		RunE: a.served(func(ctx context.Context, c *client.Client, _ []string) error {
			o.Since = since.time
			return a.audit(ctx, c, o)
		}),
	}
	f := c.Flags()
	f.StringVar(&o.Session, "session", "", "only of the session of this `name`")
	f.StringVar(&o.Actor, "actor", "", "only what this `name` did: that of a key, or \"user NAME\"")
	f.StringVar(&o.Action, "action", "", "only this `action`: open, cell, command, end, snapshot, …")
	f.Var(&since, "since", "only entries since this `time`, such as 2h, 7d, 2030-01-31 or \"2030-01-31 15:04\"")
	f.Int64Var(&o.After, "after", 0, "start after entry `number`, which --json prints as id")
	f.IntVar(&o.Last, "limit", 0, "only the newest entries, at most this `number` (default all)")
	a.completeSession(c, "session")
	return c
}

// auditDetail is the least that is shown of the code or command of an entry.
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

// auditLine returns an entry as a line of text, whose detail is cut to the width.
func auditLine(e session.Entry, width int) string {
	head := fmt.Sprintf("%s %-10s %-10s %-8s %-8s ", e.Time.Local().Format(time.DateTime), e.Actor, e.Session, e.Action, cmp.Or(e.Error, e.Verdict))
	return console.OneLine(head + console.Clip(e.Detail, max(auditDetail, width-len([]rune(head)))))
}

// moment is a point in time as a flag: a duration before now, or a date with or without a time of day.
type moment struct {
	text string
	time time.Time
}

// String returns what was given.
func (m *moment) String() string { return m.text }

// Type names the value in help texts.
func (*moment) Type() string { return "time" }

// Set reads one.
func (m *moment) Set(text string) error {
	m.text = text
	for _, layout := range []string{time.RFC3339, time.DateTime, "2006-01-02T15:04:05", "2006-01-02 15:04", "2006-01-02T15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			m.time = t
			return nil
		}
	}
	d, err := v1.ParseDuration(text)
	if err != nil || d <= 0 {
		return fmt.Errorf("%q is neither a duration above zero, like 2h or 7d, nor a time, like 2030-01-31 or 2030-01-31T15:04:05Z", text)
	}
	m.time = time.Now().Add(-d.Std())
	return nil
}
