package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/atomicfile"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/internal/redact"
	"github.com/recluse-dev/recluse/internal/runview"
	"github.com/recluse-dev/recluse/rlm"
)

func (a *app) runsWatchCommand() *cobra.Command {
	var quiet bool
	c := &cobra.Command{
		Use:   "watch RUN",
		Short: "Follow a run to its end, and print the answer",
		Long: `Follow a run to its end, and print the answer.

The run is shown as recluse ask shows it: as a live tree on a terminal, else as plain
lines. A run that has ended is shown as it ended. With --json, stdout has the events of
the run from its beginning, one JSON object a line.

Ctrl-C stops watching. The run continues.

Exit status:
  0    there is an answer
  1    the run ended without an answer, or was interrupted
  125  the run does not exist or cannot be read
  130  after Ctrl-C`,
		Example:           "  recluse runs watch last",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: runFirst,
		RunE: a.withRun(func(ctx context.Context, c *client.Client, i *rlm.Info) error {
			return a.watchRun(ctx, c, i, quiet)
		}),
	}
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only the answer")
	return c
}

func (a *app) watchRun(ctx context.Context, c *client.Client, i *rlm.Info, quiet bool) error {
	r := &remote{c: c, id: i.ID}
	all := c.PastRunEvents(ctx, i.ID)
	if i.Running {
		all = r.Watch(ctx, 0)
	}
	v := a.view(quiet)
	for e, err := range all {
		if err != nil {
			v.Close()
			return cause(ctx, err)
		}
		v.Event(e)
	}
	v.Close()
	if ctx.Err() != nil {
		return cause(ctx, ctx.Err())
	}
	res, err := r.Wait()
	return a.outcome(ctx, quiet, res, err)
}

// showOptions are the flags of recluse runs show.
type showOptions struct {
	events, full bool
	html         string
}

func (a *app) runsShowCommand() *cobra.Command {
	var o showOptions
	c := &cobra.Command{
		Use:   "show RUN",
		Short: "Show a run as a transcript",
		Long: `Show a run as a transcript.

The transcript has the question, the contexts, every turn with the reply of the model, its
code, the output and the calls of the code, child runs, the answer, and what all of it
cost. Long texts are cut, with a note.

With --html, the transcript is written to FILE as one page that needs no network. What
looks like a key or a password is replaced there, and so are the values of environment
variables whose names end with KEY, TOKEN, SECRET or PASSWORD. Look at the page before you
publish it: it has texts of your context.

With --json, the run is printed as one object. With --events, its events are printed, one
JSON object a line.`,
		Example: `  recluse runs show last
  recluse runs show last --full | less -R
  recluse runs show last --html run.html
  recluse runs show last --events | jq -r .kind`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: runFirst,
		RunE: a.withRun(func(ctx context.Context, c *client.Client, i *rlm.Info) error {
			return a.showRun(ctx, c, i, o)
		}),
	}
	f := c.Flags()
	f.BoolVar(&o.full, "full", false, "show all of every text")
	f.StringVar(&o.html, "html", "", "`file` to write as an HTML page; an existing file is replaced")
	f.BoolVar(&o.events, "events", false, "print the events of the run as JSON Lines")
	c.MarkFlagsMutuallyExclusive("html", "events")
	c.MarkFlagsMutuallyExclusive("full", "events")
	return c
}

func (a *app) showRun(ctx context.Context, c *client.Client, info *rlm.Info, o showOptions) error {
	switch {
	case o.events:
		return writeEvents(ctx, c, info.ID, a.stdout)
	case a.json && o.html == "":
		return console.WriteJSON(a.stdout, info)
	}
	t := runview.NewTranscript()
	for ev, err := range c.PastRunEvents(ctx, info.ID) {
		if err != nil {
			return err
		}
		t.Event(ev)
	}
	if o.full || o.html != "" {
		prompts, err := c.RunPrompts(ctx, info.ID)
		if err != nil {
			return err
		}
		t.SetPrompts(prompts)
	}
	view := runview.TranscriptOptions{Full: o.full, State: runState(info)}
	if o.html != "" {
		return a.writePage(t, o.html, view)
	}
	p := console.NewPaint(a.stdout)
	view.Colour = p.Bold != ""
	if err := t.WriteText(a.stdout, view); err != nil {
		return err
	}
	if !info.Running && info.Result == nil {
		fmt.Fprintf(a.stdout, "\n%sto continue: recluse runs resume %s%s\n", p.Dim, info.ID, p.Off)
	}
	return nil
}

// writePage writes a transcript to a file as an HTML page without secrets.
func (a *app) writePage(t *runview.Transcript, file string, o runview.TranscriptOptions) error {
	secrets, err := a.secrets()
	if err != nil {
		return err
	}
	o.Redact = redact.New(secrets).Text
	var b bytes.Buffer
	if err = t.WriteHTML(&b, o); err == nil {
		err = atomicfile.Write(file, b.Bytes(), 0o600)
	}
	if err != nil {
		return &v1.Error{Code: v1.CodeInvalidRequest, Op: "show run", Message: "cannot write the page", Err: err}
	}
	return a.result(map[string]string{"html": file}, "%s\n", file)
}

// secretNames are the ends of names of environment variables that hold secrets.
var secretNames = []string{"KEY", "TOKEN", "SECRET", "PASSWORD"}

// secrets returns the secrets that this program knows: the key of the server, the keys of models, and values of
// environment variables.
func (a *app) secrets() ([]string, error) {
	set, err := a.cfg.Models.Open()
	if err != nil {
		return nil, err
	}
	defer set.Close()
	out := append(set.Secrets(), string(a.cfg.Client.Key))
	for _, v := range os.Environ() {
		name, value, _ := strings.Cut(v, "=")
		for _, end := range secretNames {
			if strings.HasSuffix(strings.ToUpper(name), end) {
				out = append(out, value)
			}
		}
	}
	return out, nil
}
