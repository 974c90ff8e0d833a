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
	// provenHere is how long this program believes that a sandbox can be made.
	provenHere = time.Minute
	// provenElsewhere is how long every program with the same file believes it.
	provenElsewhere = time.Hour
)

// Proof remembers that a sandbox could be made, with all that this depended on. A program that lives for
// one command would otherwise make a sandbox to see whether that works, before its own.
type Proof[T comparable] struct {
	Path string // of the file that other programs read

	mu sync.Mutex
	at time.Time // guarded by mu; when this program saw it last
}

// proven is the content of the file.
type proven[T comparable] struct {
	Of T         `json:"of"`
	At time.Time `json:"at"`
}

// Fresh reports whether this program has seen lately that a sandbox can be made.
func (p *Proof[T]) Fresh() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.at) < provenHere
}

// Renew notes that this program has just made a sandbox.
func (p *Proof[T]) Renew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at = time.Now()
}

// Kept returns what some program has proved in the last hour.
func (p *Proof[T]) Kept() (of T, ok bool) {
	var got proven[T]
	if atomicfile.ReadJSON(p.Path, &got) != nil {
		return of, false
	}
	age := time.Since(got.At)
	return got.Of, age >= 0 && age < provenElsewhere
}

// Keep writes a proof for other programs. Without it they try as well.
func (p *Proof[T]) Keep(of T) {
	if os.MkdirAll(filepath.Dir(p.Path), 0o700) == nil {
		_ = atomicfile.WriteJSON(p.Path, proven[T]{of, time.Now().UTC()})
	}
}

// Forget drops all proofs: a sandbox could not be made.
func (p *Proof[T]) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at = time.Time{}
	_ = os.Remove(p.Path) // mostly there is none
}

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
		next.err = &v1.Error{Code: v1.CodeBackendMissing, Op: "try a sandbox", Message: "the backend was closed"}
		close(next.done)
	}
	return next
}
