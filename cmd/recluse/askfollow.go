package main

import (
	"context"
	"io"
	"iter"
	"os"

	"golang.org/x/term"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/console"
	"github.com/recluse-dev/recluse/internal/runview"
	"github.com/recluse-dev/recluse/rlm"
)

// following is a run that can be watched: one of this process, or one of a server.
type following interface {
	Watch(ctx context.Context, from int64) iter.Seq2[v1.RunEvent, error]
	Cancel()
	Wait() (*rlm.Result, error)
}

// view prints the progress of a run.
type view interface {
	Event(e v1.RunEvent)
	Close()
}

// follow starts a run, shows its progress until its end, and prints the answer.
func (a *app) follow(ctx context.Context, quiet bool, begin func(context.Context) (following, error)) error {
	// When ctx ends, the run is cancelled but still awaited, so that it has a result.
	own := context.WithoutCancel(ctx)
	beginning, cancel := context.WithCancel(own)
	defer cancel()
	stop := context.AfterFunc(ctx, cancel)
	r, err := begin(beginning)
	stop()
	if err != nil {
		return cause(ctx, err)
	}
	defer context.AfterFunc(ctx, r.Cancel)()
	// a second signal may arrive before the request of the first is sent
	a.signals.onLeave(func(context.Context) { r.Cancel() })
	v := a.view(quiet)
	defer context.AfterFunc(ctx, func() {
		const text = "stopping; press Ctrl-C again to exit at once"
		switch v := v.(type) {
		case *runview.Live:
			v.Note(text)
		case *runview.Lines:
			if !quiet {
				a.notice("%s", text)
			}
		}
	})()
	for e, err := range r.Watch(own, 0) {
		if err != nil {
			v.Close()
			return cause(ctx, err)
		}
		v.Event(e)
	}
	res, err := r.Wait()
	v.Close()
	return a.outcome(ctx, quiet, res, err)
}

// outcome prints the answer of a run, and returns its exit status as an error.
func (a *app) outcome(ctx context.Context, quiet bool, res *rlm.Result, err error) error {
	if res != nil && !a.json {
		if res.StateFrom != nil {
			a.noticeRestored(*res.StateFrom)
		}
		if res.Previous != "" {
			a.noticeNew(res.Previous)
		}
		a.printAnswer(res)
		if s := res.Samples; s != nil && !quiet {
			a.notice("agreement %d of %d", s.Agreement, s.Count)
		}
	}
	return a.verdictOf(ctx, res, err)
}

// view returns how a run is shown: as events with --json, as a tree on a terminal, else as lines.
func (a *app) view(quiet bool) view {
	f, ok := a.stderr.(*os.File)
	switch {
	case a.json:
		return events{a}
	case quiet:
		return runview.NewLines(io.Discard)
	case ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" && !a.modelReads():
		live := runview.NewLive(f)
		a.signals.onLeave(func(context.Context) { live.Abandon() })
		return live
	}
	return a.lines(a.stderr)
}

// lines returns a view that prints a run as lines.
func (a *app) lines(w io.Writer) *runview.Lines {
	l := runview.NewLines(w)
	if a.modelReads() {
		l.ForModel()
	}
	return l
}

// events prints a run as JSON Lines.
type events struct{ a *app }

// Event prints one event, if it is stored. If stdout is closed, it cancels the verb.
func (v events) Event(e v1.RunEvent) {
	if e.Kind != v1.KindProgress && console.WriteLine(v.a.stdout, e) != nil {
		v.a.signals.cancel(errPipe)
	}
}

// Close does nothing.
func (events) Close() {}
