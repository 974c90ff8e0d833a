package main

import (
	"context"
	"errors"
	"iter"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/rlm"
)

const (
	// cancelWait is the timeout for requests that stop a run or fetch its result.
	cancelWait = 30 * time.Second
	// resumeWait is how long the next server has to continue a run, and resumePoll how often it is queried.
	resumeWait = 10 * time.Second
	resumePoll = 200 * time.Millisecond
)

// inServer starts a run in the server, shows its progress until its end, and prints the answer.
func (a *app) inServer(
	ctx context.Context,
	quiet bool,
	begin func(context.Context, *client.Client) (*rlm.Info, error),
) error {
	return a.withServer(ctx, func(ctx context.Context, c *client.Client) error {
		warn := func(wanted bool) {
			if a.otherConfig && wanted {
				a.notice("warning: the server was started with a different configuration, which applies; " +
					"to use yours, run recluse server stop first")
			}
		}
		warn(!quiet)
		return a.follow(ctx, quiet, func(ctx context.Context) (following, error) {
			info, err := begin(ctx, c)
			if err != nil {
				warn(quiet) // it may be the cause
				return nil, err
			}
			return &remote{c: c, id: info.ID}, nil
		})
	})
}

// remote is a run in a server.
type remote struct {
	c  *client.Client
	id string
}

// Watch implements following. If the server dies, the next server continues the run, and its events follow. A run of
// another program than the server is queried for new events.
func (r *remote) Watch(ctx context.Context, from int64) iter.Seq2[v1.RunEvent, error] {
	return func(yield func(v1.RunEvent, error) bool) {
		for {
			ended, before := false, from
			for e, err := range r.c.WatchRun(ctx, r.id, from) {
				if !yield(e, err) || err != nil {
					return
				}
				from, ended = max(from, e.Seq), e.Kind == v1.KindRunEnded
			}
			if ended || !r.awaitNextServer(ctx) {
				return
			}
			if from == before {
				select {
				case <-time.After(resumePoll):
				case <-ctx.Done():
				}
			}
		}
	}
}

// awaitNextServer waits until a server works on the run again or the run has ended. It reports false after resumeWait.
func (r *remote) awaitNextServer(ctx context.Context) bool {
	for end := time.Now().Add(resumeWait); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(resumePoll) {
		info, err := r.c.Run(ctx, r.id)
		if err != nil {
			return false
		}
		if info.Running || info.Result != nil {
			return true
		}
	}
	return false
}

// Cancel implements following.
func (r *remote) Cancel() {
	ctx, cancel := context.WithTimeout(context.Background(), cancelWait)
	defer cancel()
	_, _ = r.c.CancelRun(ctx, r.id) // the events show whether it stopped
}

// Wait implements following.
func (r *remote) Wait() (*rlm.Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), cancelWait)
	defer cancel()
	info, err := r.c.Run(ctx, r.id)
	if err != nil {
		return nil, err
	}
	if info.Result == nil {
		return nil, &v1.Error{
			Code:    v1.CodeNoAnswer,
			Op:      "answer",
			Message: "the run was interrupted",
			Remedy:  "continue it with recluse runs resume " + r.id,
		}
	}
	if info.Result.Reason != v1.ReasonAnswered {
		return info.Result, &v1.Error{
			Code:    v1.CodeNoAnswer,
			Op:      "answer",
			Message: "the run ended: " + string(info.Result.Reason),
			Err:     errors.New(info.Result.Message),
		}
	}
	return info.Result, nil
}
