package main

import (
	"context"
	"errors"
	"fmt"
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

// errPipe is the cause of a context that ended because nobody reads our output any more.
var errPipe = errors.New("the output is closed")

// watch gives a context that the first SIGINT, SIGTERM or SIGHUP ends, so that what runs is cancelled and cleaned up. A
// second signal leaves at once, after a last attempt to end what was given to guard.
type watch struct {
	cancel context.CancelCauseFunc
	stop   func()

	mu    sync.Mutex
	boxes []*sandbox.Sandbox // guarded by mu
	leave []func()           // guarded by mu
}

func (a *app) watch(ctx context.Context) (context.Context, *watch) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watch{cancel: cancel}
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
	w.stop = sync.OnceFunc(func() {
		signal.Stop(signals)
		close(done)
		<-watched // what is abandoned wakes the verb, which must not get ahead of who leaves at once
		cancel(nil)
	})
	return ctx, w
}

// guard names a sandbox that is to be ended before leaving at once.
func (w *watch) guard(s *sandbox.Sandbox) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.boxes = append(w.boxes, s)
}

// onLeave names what else is to be done before leaving at once. It must be quick.
func (w *watch) onLeave(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leave = append(w.leave, f)
}

// abandon ends what is guarded, as far as that goes quickly.
func (w *watch) abandon() {
	w.mu.Lock()
	boxes, leave := w.boxes, w.leave
	w.mu.Unlock()
	for _, f := range leave {
		f()
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveWait)
	defer cancel()
	var wg sync.WaitGroup
	for _, s := range boxes {
		wg.Go(func() { _ = s.Backend().Stop(ctx, s.ID()) }) // there is no time to tell
	}
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-ctx.Done():
	}
}
