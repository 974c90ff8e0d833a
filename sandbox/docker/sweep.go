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

// sweeping is what is known of the sweep of this program.
type sweeping struct {
	first sync.Mutex // held during the first

	mu    sync.Mutex
	at    time.Time // guarded by mu; of the last one
	done  bool      // guarded by mu; nothing is left to do
	again bool      // guarded by mu; another one is under way
	err   error     // guarded by mu; what could not be ended
}

func (s *sweeping) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at, s.done, s.again, s.err = time.Now(), err == nil, false, err
}

// sweepFirst sweeps once in a program's life, before it makes its first sandbox. A while after a sweep that was not whole it has another one begun,
// for which nobody waits. Start does not fail for any of it: Health tells.
func (b *Backend) sweepFirst(ctx context.Context) {
	s := &b.sweeping
	s.first.Lock()
	defer s.first.Unlock()
	s.mu.Lock()
	never, due := s.at.IsZero(), !s.done && !s.again && time.Since(s.at) >= sweepAgain
	s.mu.Unlock()
	switch {
	case !due:
	case never:
		whole, cancel := context.WithTimeout(ctx, cleanWait)
		defer cancel()
		if err := b.sweep(whole); ctx.Err() == nil { // who gave up has not tried
			s.note(err)
		}
	default:
		b.sweepAgain()
	}
}

func (b *Backend) sweepAgain() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	s := &b.sweeping
	s.mu.Lock()
	s.again = true
	s.mu.Unlock()
	b.watchers.Go(func() {
		ctx, cancel := context.WithTimeout(b.ctx, cleanWait)
		defer cancel()
		s.note(b.sweep(ctx))
	})
}

// unswept says what dead programs have left and could not be ended.
func (b *Backend) unswept() error {
	b.sweeping.mu.Lock()
	defer b.sweeping.mu.Unlock()
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
