package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
)

// leaveWait is the timeout for ending sandboxes after a second signal, before the program exits at once.
const leaveWait = 2 * time.Second

// interrupted is the cause of a ctx that a signal has ended.
type interrupted struct{ signal syscall.Signal }

func (e interrupted) Error() string { return "by " + signalName(e.signal) }

// signalled returns the exit status 128+N if err is an interruption by signal N.
func signalled(err error) (status int, ok bool) {
	if i, ok := errors.AsType[interrupted](err); ok {
		return 128 + int(i.signal), true
	}
	return 0, false
}

// untilSignal returns the error of a verb that prints until a signal ends it: then only the exit status tells of the
// signal.
func untilSignal(ctx context.Context, err error) error {
	if s, ok := signalled(context.Cause(ctx)); ok {
		return exit(s)
	}
	return err
}

// errPipe is the cause of a ctx that ended because the reader of our output has closed it.
var errPipe = errors.New("the output is closed")

// outputClosed reports whether err comes from a write to our stdout after its reader has closed it, as in recluse audit
// | head.
func outputClosed(err error) bool {
	failed, ok := errors.AsType[*fs.PathError](err)
	return ok && failed.Path == os.Stdout.Name() && errors.Is(failed, syscall.EPIPE)
}

// watch handles the signals of a verb.
type watch struct {
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	leave []func(context.Context) // guarded by mu
}

// watch returns a ctx that the first SIGINT, SIGTERM or SIGHUP cancels, so that the verb can clean up. At the second
// signal the program exits at once, after it has called the functions of onLeave with a timeout. Signals are handled
// until the verb has ended.
func (a *app) watch(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watch{cancel: cancel}
	a.signals = w
	signals := make(chan os.Signal, 4)
	done, watched := make(chan struct{}), make(chan struct{})
	signal.Notify(signals, endingSignals...)
	go func() {
		defer close(watched)
		for n := 0; ; n++ {
			var sig syscall.Signal
			select {
			case <-done:
				return
			case s := <-signals:
				sig, _ = s.(syscall.Signal)
			}
			if n == 0 {
				cancel(interrupted{sig})
				continue
			}
			w.abandon()
			fmt.Fprintln(a.stderr)
			a.notice("exited at once; recluse doctor shows sandboxes that may be left")
			os.Exit(128 + int(sig))
		}
	}()
	a.atEnd = append(a.atEnd, func() error {
		signal.Stop(signals)
		close(done)
		<-watched // abandon makes the verb return, but the program must exit with the status of the signal
		cancel(nil)
		return nil
	})
	return ctx
}

// guard registers a sandbox to be ended before the program exits at once.
func (w *watch) guard(s *sandbox.Sandbox) {
	w.onLeave(func(ctx context.Context) { _ = s.Backend().Stop(ctx, s.ID()) }) // there is no time to report errors
}

// onLeave registers a function to be called before the program exits at once.
func (w *watch) onLeave(f func(context.Context)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leave = append(w.leave, f)
}

// abandon calls the functions of onLeave in parallel and waits for them, for leaveWait at most.
func (w *watch) abandon() {
	w.mu.Lock()
	leave := w.leave
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), leaveWait)
	defer cancel()
	var wg sync.WaitGroup
	for _, f := range leave {
		wg.Go(func() { f(ctx) })
	}
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-ctx.Done():
	}
}
