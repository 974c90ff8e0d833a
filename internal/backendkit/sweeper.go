package backendkit

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"
)

// Sweeper ends what programs have left that died: once in a program's life, before it makes its first
// sandbox, and again a while after a sweep that was incomplete. The start of a sandbox does not fail for
// it; Err is for Health.
type Sweeper struct {
	// Sweep ends what is left.
	Sweep func(ctx context.Context) error
	// Limit bounds one sweep.
	Limit time.Duration
	// Again is how long after an incomplete sweep the next one is due; 0: a minute.
	Again time.Duration
	// Go runs a later sweep in the background, or reports that the backend is closed; nil: the caller waits for it.
	Go func(f func(ctx context.Context)) bool

	first sync.Mutex // held during the first

	mu    sync.Mutex
	at    time.Time // guarded by mu; of the last one
	done  bool      // guarded by mu; nothing is left to do
	again bool      // guarded by mu; another one is under way
	err   error     // guarded by mu; what could not be ended
}

// Once sweeps if that is due.
func (s *Sweeper) Once(ctx context.Context) {
	s.first.Lock()
	defer s.first.Unlock()
	s.mu.Lock()
	never, due := s.at.IsZero(), !s.done && !s.again && time.Since(s.at) >= cmp.Or(s.Again, time.Minute)
	s.again = due && !never
	s.mu.Unlock()
	switch {
	case !due:
	case never || s.Go == nil:
		s.sweep(ctx)
	default:
		s.Go(s.sweep)
	}
}

func (s *Sweeper) sweep(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, s.Limit)
	defer cancel()
	err := s.Sweep(limited)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.again = false
	if ctx.Err() == nil { // a caller that gave up has not tried
		s.at, s.done, s.err = time.Now(), err == nil, err
	}
}

// Err returns what dead programs have left and the last sweep could not end.
func (s *Sweeper) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// EndAll calls end for 0 to n-1, several at once, and joins the errors.
func EndAll(n int, end func(i int) error) error {
	const together = 8
	var wg sync.WaitGroup
	slots := make(chan struct{}, together)
	errs := make([]error, n)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			errs[i] = end(i)
			<-slots
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
