package backendkit

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/atomicfile"
)

const (
	// provenHere is how long this program assumes that sandboxes can be made after it has made one.
	provenHere = time.Minute
	// provenElsewhere is how long every program with the same file assumes it.
	provenElsewhere = time.Hour
)

// Proof remembers that a sandbox was made successfully, with everything on which that depended. Without it, a program
// that runs only one command would make a trial sandbox before its own.
type Proof[T comparable] struct {
	Path string // of the file that other programs read

	mu sync.Mutex
	at time.Time // guarded by mu; when this program last made a sandbox
}

// proven is the content of the file.
type proven[T comparable] struct {
	Of T         `json:"of"`
	At time.Time `json:"at"`
}

// Fresh reports whether this program has recently made a sandbox.
func (p *Proof[T]) Fresh() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.at) < provenHere
}

// Renew records that this program has just made a sandbox.
func (p *Proof[T]) Renew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at = time.Now()
}

// Kept returns the proof of any program that is less than an hour old.
func (p *Proof[T]) Kept() (of T, ok bool) {
	var got proven[T]
	if atomicfile.ReadJSON(p.Path, &got) != nil {
		return of, false
	}
	age := time.Since(got.At)
	return got.Of, age >= 0 && age < provenElsewhere
}

// Keep writes a proof for other programs. Errors are ignored: without the proof, other programs run their own trial.
func (p *Proof[T]) Keep(of T) {
	if os.MkdirAll(filepath.Dir(p.Path), 0o700) == nil {
		_ = atomicfile.WriteJSON(p.Path, proven[T]{of, time.Now().UTC()})
	}
}

// Forget drops all proofs. It is called when a sandbox could not be made.
func (p *Proof[T]) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at = time.Time{}
	_ = os.Remove(p.Path) // usually the file does not exist
}

// trialRetry is how long the result of a failed trial is reused.
const trialRetry = 2 * time.Second

// Trials makes trial sandboxes to find out whether sandboxes can be made. A trial outlives the call that requested it:
// under load a trial takes longer than a caller waits, and an interrupted trial would leave an incomplete sandbox.
type Trials struct {
	// Limit is the timeout of one trial.
	Limit time.Duration
	// Go runs a trial in the background, or returns false if the backend is closed.
	Go func(f func(ctx context.Context)) bool

	mu   sync.Mutex
	last *trial // guarded by mu
}

type trial struct {
	began time.Time
	done  chan struct{}
	err   error // valid once done is closed
}

// Wait waits for the running trial, the trial that failed recently, or a new trial, which calls try. known is false if
// the trial takes longer than timeout.
func (t *Trials) Wait(
	ctx context.Context, timeout time.Duration, try func(ctx context.Context) error,
) (known bool, err error) {
	last := t.begin(try)
	select {
	case <-last.done:
		return true, last.err
	case <-ctx.Done():
		return true, ctx.Err()
	case <-time.After(timeout):
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
		next.err = &v1.Error{Code: v1.CodeBackendMissing, Op: "make trial sandbox", Message: "the backend is closed"}
		close(next.done)
	}
	return next
}
