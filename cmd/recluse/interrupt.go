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

// leaveWait bounds the last attempt to end a sandbox when the user has no patience left.
const leaveWait = 2 * time.Second

// interrupted is the cause of a context that ended by a signal.
type interrupted struct{ signal syscall.Signal }

func (e interrupted) Error() string { return "by " + signalName(e.signal) }

// signalled gives the exit status of an invocation that a signal ended.
func signalled(err error) (status int, ok bool) {
	if i, ok := errors.AsType[interrupted](err); ok {
		return 128 + int(i.signal), true
	}
	return 0, false
}

// errPipe is the cause of a context that was ended because the reader of our output has closed it.
var errPipe = errors.New("the output is closed")

// outputClosed reports whether err comes from writing to our own stdout after its reader has closed it, as in recluse audit | head.
func outputClosed(err error) bool {
	failed, ok := errors.AsType[*fs.PathError](err)
	return ok && failed.Path == os.Stdout.Name() && errors.Is(failed, syscall.EPIPE)
}

// watch is what the signals of a verb end.
type watch struct {
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	leave []func(context.Context) // guarded by mu
}

// watch returns a context that the first SIGINT, SIGTERM or SIGHUP ends, so that what runs is cancelled and cleaned up. A
// second signal leaves at once, after a last attempt to end what was given to guard. It holds until the verb has ended.
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
			a.say("left at once; recluse doctor shows what may have stayed")
			os.Exit(128 + int(sig))
		}
	}()
	a.atEnd = append(a.atEnd, func() error {
		signal.Stop(signals)
		close(done)
		<-watched // what is abandoned wakes the verb, which must not get ahead of who leaves at once
		cancel(nil)
		return nil
	})
	return ctx
}

// guard names a sandbox that is to be ended before leaving at once.
func (w *watch) guard(s *sandbox.Sandbox) {
	w.onLeave(func(ctx context.Context) { _ = s.Backend().Stop(ctx, s.ID()) }) // there is no time to tell
}

// onLeave names what else is to be done before leaving at once.
func (w *watch) onLeave(f func(context.Context)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leave = append(w.leave, f)
}

// abandon ends what is guarded, as far as that goes quickly.
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
