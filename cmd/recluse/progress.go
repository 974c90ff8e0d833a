package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// Width of the progress bar, and the shortest time between two updates.
const (
	barWidth = 30
	barEvery = 100 * time.Millisecond
)

// progress returns a function that draws a progress bar on stderr, or nil if stderr is not a terminal.
func (a *app) progress() func(what string, done, total int64) {
	f, ok := a.stderr.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
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
