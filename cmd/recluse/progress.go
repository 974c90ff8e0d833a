package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/recluse-dev/recluse/client"
	"github.com/recluse-dev/recluse/internal/console"
)

// Width of the progress bar, and the shortest time between two updates.
const (
	barWidth = 30
	barEvery = 100 * time.Millisecond
)

// A call to a server whose progress is unknown shows how long it takes, after longCall, and then every callEvery.
const (
	longCall  = 2 * time.Second
	callEvery = time.Second
)

// stderrTerminal returns stderr, or nil if it is not a terminal.
func (a *app) stderrTerminal() *os.File {
	f, ok := a.stderr.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return f
}

// saving shows the progress of a call that takes a snapshot of a session.
func (a *app) saving(what string, s *client.Session) (done func()) {
	return a.elapsed(what+" "+s.Name(), longCall, func(ctx context.Context) string {
		i, err := s.Info(ctx)
		if err != nil || i.Saving == nil {
			return ""
		}
		return fmt.Sprintf(", %s of %s", console.Bytes(i.Saving.Done), console.Bytes(i.Saving.Total))
	})
}

// elapsed shows on a terminal how long a call takes, if that is longer than after, until the function that it returns
// is called. It shows nothing with --json. more returns what is shown besides.
func (a *app) elapsed(what string, after time.Duration, more func(context.Context) string) (done func()) {
	f := a.stderrTerminal()
	if f == nil || a.json {
		return func() {}
	}
	var (
		start     = time.Now()
		ctx, stop = context.WithCancel(context.Background())
		ticker    sync.WaitGroup
	)
	ticker.Go(func() {
		next := time.NewTimer(after)
		defer next.Stop()
		for drawn := false; ; drawn = true {
			select {
			case <-next.C:
				text := more(ctx)
				fmt.Fprintf(f, "\r\x1b[K%s … %d s%s", what, int(time.Since(start).Seconds()), text)
				next.Reset(callEvery)
			case <-ctx.Done():
				if drawn {
					fmt.Fprint(f, "\r\x1b[K")
				}
				return
			}
		}
	})
	return func() {
		stop()
		ticker.Wait()
	}
}

// progress returns a function that draws a progress bar on stderr, or nil if stderr is not a terminal.
func (a *app) progress() func(what string, done, total int64) {
	f := a.stderrTerminal()
	if f == nil {
		return nil
	}
	var (
		mu   sync.Mutex
		last time.Time // guarded by mu
	)
	return func(what string, done, total int64) {
		mu.Lock()
		defer mu.Unlock()
		if total > 0 && done >= total {
			fmt.Fprint(f, "\r\x1b[K")
			return
		}
		if time.Since(last) < barEvery {
			return
		}
		last = time.Now()
		if total <= 0 && done <= 0 {
			fmt.Fprintf(f, "\r\x1b[K%s …", what)
			return
		}
		if total <= 0 {
			fmt.Fprintf(f, "\r\x1b[K%s  %.1f MB", what, float64(done)/1e6)
			return
		}
		full := int(done * barWidth / total)
		bar := strings.Repeat("=", full) + strings.Repeat(" ", barWidth-full)
		fmt.Fprintf(f, "\r\x1b[K%s  [%s] %d%% of %.1f MB", what, bar, done*100/total, float64(total)/1e6)
	}
}
