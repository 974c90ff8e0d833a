package docker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
)

// sweeping is what is known of the sweep of this program. Its mutex is held while one goes on.
type sweeping struct {
	mu   sync.Mutex
	at   time.Time // guarded by mu; of the last one
	done bool      // guarded by mu; nothing is left to do

	errMu sync.Mutex
	err   error // guarded by errMu; what could not be ended
}

// sweepFirst sweeps once in a program's life, before it makes its first sandbox, and again a while after a sweep that was not whole. Start does not
// fail for it: Health tells.
func (b *Backend) sweepFirst(ctx context.Context) {
	s := &b.sweeping
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done || !s.at.IsZero() && time.Since(s.at) < sweepAgain {
		return
	}
	whole, cancel := context.WithTimeout(ctx, cleanWait)
	defer cancel()
	err := b.sweep(whole)
	if ctx.Err() != nil {
		return // who gave up has not tried
	}
	s.at, s.done = time.Now(), err == nil
	s.errMu.Lock()
	defer s.errMu.Unlock()
	s.err = err
}

// unswept says what dead programs have left and could not be ended.
func (b *Backend) unswept() error {
	b.sweeping.errMu.Lock()
	defer b.sweeping.errMu.Unlock()
	return b.sweeping.err
}

// sweep ends what programs of this instance have left that died, several at once.
func (b *Backend) sweep(ctx context.Context) error {
	res, err := b.cli.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: b.filter()})
	if err != nil {
		return err
	}
	var ending sync.WaitGroup
	slots := make(chan struct{}, sweepers)
	errs := make([]error, len(res.Items))
	end := func(i int, f func() error) {
		slots <- struct{}{}
		ending.Go(func() {
			if err := f(); err != nil {
				errs[i] = fmt.Errorf("container %.12s: %w", res.Items[i].ID, err)
			}
			<-slots
		})
	}
	for i, c := range res.Items {
		r, ok := readRecord(c.ID, c.Labels)
		switch {
		case !b.mine(c.Labels):
		case ok && !r.Spec.Persist && b.readNote(r).Owner.dead():
			end(i, func() error { return b.Stop(ctx, r.ID) })
		case !ok && c.Labels[labelCarrier] != "" && c.State == container.StateCreated && ownerOf(c.Labels).dead():
			end(i, func() error { return b.remove(ctx, c.ID) })
		}
	}
	ending.Wait()
	return errors.Join(errs...)
}
