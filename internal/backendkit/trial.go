package backendkit

import (
	"context"
	"sync"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
)

// trialRetry is how long a failed trial is believed.
const trialRetry = 2 * time.Second

// Trials make a sandbox to see whether that works. A trial outlives the call that asked for it: a machine under load takes
// longer than a caller waits, and the sandbox is not left half made.
type Trials struct {
	// Limit bounds one trial.
	Limit time.Duration
	// Go runs a trial in the background, or reports that the backend is closed.
	Go func(f func(ctx context.Context)) bool

	mu   sync.Mutex
	last *trial // guarded by mu
}

type trial struct {
	began time.Time
	done  chan struct{}
	err   error // once done is closed
}

// Wait waits for the trial that is under way, the one that lately failed, or a new one, which calls try. known is false if
// it takes longer than patience.
func (t *Trials) Wait(ctx context.Context, patience time.Duration, try func(ctx context.Context) error) (known bool, err error) {
	last := t.begin(try)
	select {
	case <-last.done:
		return true, last.err
	case <-ctx.Done():
		return true, ctx.Err()
	case <-time.After(patience):
		return false, nil
	}
}

func (t *Trials) begin(try func(ctx context.Context) error) *trial {
	t.mu.Lock()
	defer t.mu.Unlock()
	if last := t.last; last != nil {
		select {
		case <-last.done:
			if last.err != nil && time.Since(last.began) < trialRetry {
				return last
			}
		default:
			return last
		}
	}
	next := &trial{began: time.Now(), done: make(chan struct{})}
	t.last = next
	if !t.Go(func(ctx context.Context) {
		defer close(next.done)
		ctx, cancel := context.WithTimeout(ctx, t.Limit)
		defer cancel()
		next.err = try(ctx)
	}) {
		next.err = &sandbox.Error{Code: sandbox.CodeBackendMissing, Op: "try a sandbox", Message: "the backend was closed"}
		close(next.done)
	}
	return next
}
