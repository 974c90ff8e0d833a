//go:build linux

package pool

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/local"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func backend(t *testing.T) sandbox.Backend {
	t.Helper()
	_, guest, err := testbin.Programs()
	if err != nil {
		t.Fatal(err)
	}
	return local.New(local.Options{Dir: t.TempDir(), GuestPath: guest.Path})
}

func newPool(t *testing.T, b sandbox.Backend, opts Options) *Pool {
	t.Helper()
	p := New(b, opts)
	t.Cleanup(func() {
		p.Close()
		if left, err := b.List(context.Background()); err != nil || len(left) != 0 {
			t.Errorf("left behind: %v %v", left, err)
		}
	})
	return p
}

func get(t *testing.T, p *Pool, spec sandbox.Spec) *sandbox.Sandbox {
	t.Helper()
	sb, err := p.Get(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Error(err)
		}
	})
	return sb
}

func TestNobodyGetsAUsedSandbox(t *testing.T) {
	t.Parallel()
	p := newPool(t, backend(t), Options{Min: 2, Target: 2, Max: 4})
	if err := p.Warm(t.Context(), sandbox.Spec{}); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	seen := map[string]bool{}
	var wg sync.WaitGroup
	for range 12 {
		wg.Go(func() {
			sb, err := p.Get(t.Context(), sandbox.Spec{})
			if err != nil {
				t.Error(err)
				return
			}
			defer sb.Close()
			v, err := sb.Cell(t.Context(), sandbox.Cell{Code: "'mine' in globals(), globals().update(mine=1)"})
			if err != nil || v.Result.Text() != "(False, None)" {
				t.Errorf("%v %v", v, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if seen[sb.ID()] {
				t.Errorf("%s was given out twice", sb.ID())
			}
			seen[sb.ID()] = true
		})
	}
	wg.Wait()
	if s := p.Stats(); s.Hits == 0 || s.Hits+s.Misses != 12 {
		t.Errorf("%+v", s)
	}
}

func TestSizesByDefault(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ given, want Options }{
		"nothing said":        {Options{}, Options{Min: 2, Target: 4, Max: 50, ShrinkAfter: 300 * time.Second, Wait: 500 * time.Millisecond}},
		"a large least":       {Options{Min: 20}, Options{Min: 20, Target: 20, Max: 50, ShrinkAfter: 300 * time.Second, Wait: 500 * time.Millisecond}},
		"everything but wait": {Options{Min: 1, Target: 2, Max: 3, ShrinkAfter: time.Hour}, Options{Min: 1, Target: 2, Max: 3, ShrinkAfter: time.Hour, Wait: 500 * time.Millisecond}},
	} {
		if got := newPool(t, backend(t), c.given).opts; !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// slow is a backend that makes no sandbox for the pool until it is released. It makes sandboxes for callers, whose
// specs have a mark, at once.
type slow struct {
	sandbox.Backend
	released chan struct{}
	asked    chan struct{} // one value for each sandbox that the pool requests
}

type callersMark struct{}

func (b *slow) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Machine, error) {
	if ctx.Value(callersMark{}) == nil {
		b.asked <- struct{}{}
		<-b.released
	}
	return b.Backend.Start(ctx, spec)
}

func TestWhoeverHasWaitedLongEnoughGetsAColdOne(t *testing.T) {
	t.Parallel()
	b := &slow{Backend: backend(t), released: make(chan struct{}), asked: make(chan struct{}, DefaultMax)}
	p := newPool(t, b, Options{})
	release := sync.OnceFunc(func() { close(b.released) })
	defer release()
	began := time.Now()
	sb, err := p.Get(context.WithValue(t.Context(), callersMark{}, true), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := sb.Close(); err != nil {
			t.Error(err)
		}
	}()
	if waited := time.Since(began); waited < DefaultWait {
		t.Errorf("only %s were waited for one that is being made", waited)
	}
	<-b.asked
	if s := p.Stats(); s.Misses != 1 || s.Hits != 0 || s.Ready != 0 || s.Making == 0 {
		t.Errorf("%+v", s)
	}
	release()
	testneed.Await(t, "the pool is filled all the same", func() bool { return p.Stats().Ready == DefaultTarget })
}

func TestThePoolFillsUpAgainAndStaysBelowItsMax(t *testing.T) {
	t.Parallel()
	p := newPool(t, backend(t), Options{Min: 1, Target: 3, Max: 4})
	get(t, p, sandbox.Spec{})
	testneed.Await(t, "three are ready", func() bool { return p.Stats().Ready == 3 })
	get(t, p, sandbox.Spec{Dir: "/"}) // another shelf
	testneed.Await(t, "nothing is being made", func() bool { return p.Stats().Making == 0 })
	if s := p.Stats(); s.Ready > 4 {
		t.Errorf("%d are ready, more than the most", s.Ready)
	}
}

func TestAShelfGrowsWithABurstAndShrinksAgain(t *testing.T) {
	t.Parallel()
	p := newPool(t, backend(t), Options{Min: 1, Target: 2, Max: 9, Wait: time.Millisecond})
	var wg sync.WaitGroup
	for range 12 {
		wg.Go(func() { get(t, p, sandbox.Spec{}) })
	}
	wg.Wait()
	testneed.Await(t, "the shelf has grown, and leaves room for another one", func() bool { s := p.Stats(); return s.Ready == 7 && s.Making == 0 })
	spec, err := sandbox.Resolve(p.backend, sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	p.shelf(spec).burst = time.Now().Add(-2 * p.opts.ShrinkAfter)
	p.mu.Unlock()
	p.Sweep()
	if s := p.Stats(); s.Ready != 2 {
		t.Errorf("%d are ready long after the burst", s.Ready)
	}
}

func TestAShelfShrinks(t *testing.T) {
	t.Parallel()
	p := newPool(t, backend(t), Options{Min: 1, Target: 3, Max: 5, ShrinkAfter: 300 * time.Millisecond})
	if err := p.Warm(t.Context(), sandbox.Spec{}); err != nil {
		t.Fatal(err)
	}
	get(t, p, sandbox.Spec{Dir: "/"})
	testneed.Await(t, "only the least of the warmed shelf is left", func() bool { s := p.Stats(); return s.Ready == 1 && s.Making == 0 })
}

func TestAShelfThatHasShrunkKeepsItsLeast(t *testing.T) {
	t.Parallel()
	b := backend(t)
	p := newPool(t, b, Options{Min: 1, Target: 2, Max: 3, ShrinkAfter: 300 * time.Millisecond})
	if err := p.Warm(t.Context(), sandbox.Spec{}); err != nil {
		t.Fatal(err)
	}
	var left []sandbox.Info
	testneed.Await(t, "only the least is left", func() bool {
		s := p.Stats()
		var err error
		left, err = b.List(t.Context())
		return s.Ready == 1 && s.Making == 0 && err == nil && len(left) == 1
	})
	if err := syscall.Kill(left[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testneed.Await(t, "another stands in for the dead one", func() bool { s := p.Stats(); return s.Died == 1 && s.Ready == 1 && s.Making == 0 })
}

func TestWarmDoesNotWaitForRoomThatOthersHold(t *testing.T) {
	t.Parallel()
	p := newPool(t, backend(t), Options{Min: 2, Target: 2, Max: 2})
	if err := p.Warm(t.Context(), sandbox.Spec{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := p.Warm(ctx, sandbox.Spec{Dir: "/"})
	if e, ok := errors.AsType[*v1.Error](err); !ok || e.Code != v1.CodeBusy || !e.Retry || e.Remedy == "" {
		t.Errorf("%v", err)
	}
}

func TestWarmWantsNoMoreThanIsEverMade(t *testing.T) {
	t.Parallel()
	p := newPool(t, backend(t), Options{Min: 2, Target: 1, Max: 3})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := p.Warm(ctx, sandbox.Spec{}); err != nil {
		t.Error(err)
	}
}

func TestWhatIsOneCallersOwnIsNotPooled(t *testing.T) {
	t.Parallel()
	p := newPool(t, backend(t), Options{Min: 1, Target: 1, Max: 2})
	own := sandbox.Spec{Env: map[string]string{"SECRET": "s3cret"}}
	for name, spec := range map[string]sandbox.Spec{"environment": own, "labels": {Labels: map[string]string{"a": "b"}}, "host name": {Hostname: "box"}} {
		err := p.Warm(t.Context(), spec)
		if e, ok := errors.AsType[*v1.Error](err); !ok || e.Code != v1.CodeInvalidRequest || e.Remedy == "" {
			t.Errorf("%s: %v", name, err)
		}
		if key(spec) == key(sandbox.Spec{}) {
			t.Errorf("%s: on the shelf of specs without", name)
		}
	}
	if v, err := get(t, p, own).Run(t.Context(), sandbox.Command{Shell: "echo $SECRET"}); err != nil || v.Stdout.String() != "s3cret\n" {
		t.Errorf("%v %v", v, err)
	}
	for range 2 {
		v, err := get(t, p, sandbox.Spec{}).Cell(t.Context(), sandbox.Cell{Code: "import os; os.environ.get('SECRET')"})
		if err != nil || !v.OK() || v.Result.Text() != "" {
			t.Errorf("%v %v", v, err)
		}
	}
}

func TestADeadSandboxIsNotGivenOut(t *testing.T) {
	t.Parallel()
	b := backend(t)
	p := newPool(t, b, Options{Min: 2, Target: 2, Max: 4})
	if err := p.Warm(t.Context(), sandbox.Spec{}); err != nil {
		t.Fatal(err)
	}
	all, err := b.List(t.Context())
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	for _, i := range all {
		if err := syscall.Kill(i.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	testneed.Await(t, "their deaths are known", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, s := range p.shelves {
			for _, sb := range s.ready {
				if alive(sb) {
					return false
				}
			}
		}
		return true
	})
	sb := get(t, p, sandbox.Spec{})
	if err := sb.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := p.Stats(); s.Died == 0 {
		t.Errorf("%+v", s)
	}
}

// stuck is a backend whose service does not answer when a sandbox is ended.
type stuck struct {
	sandbox.Backend
	away atomic.Bool
}

func (b *stuck) Stop(ctx context.Context, id string) error {
	if b.away.Load() {
		return &v1.Error{Code: v1.CodeBackendMissing, Message: "it does not answer"}
	}
	return b.Backend.Stop(ctx, id)
}

func TestWhatIsLeftOfADeadSandboxIsRemovedOnceTheBackendAnswers(t *testing.T) {
	t.Parallel()
	b := &stuck{Backend: backend(t)}
	p := newPool(t, b, Options{Min: 1, Target: 1, Max: 1})
	if err := p.Warm(t.Context(), sandbox.Spec{}); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	var dead *sandbox.Sandbox
	for _, s := range p.shelves {
		dead = s.ready[0]
	}
	p.mu.Unlock()
	b.away.Store(true)
	all, err := b.List(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	if err := syscall.Kill(all[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-dead.Gone()
	if n := p.Sweep(); n != 0 {
		t.Errorf("%d removed while the backend is away", n)
	}
	b.away.Store(false)
	if n := p.Sweep(); n != 1 {
		t.Errorf("%d removed, want 1", n)
	}
	left, err := b.List(t.Context())
	if err != nil || slices.ContainsFunc(left, func(i sandbox.Info) bool { return i.ID == dead.ID() }) {
		t.Errorf("left are %+v, %v", left, err)
	}
}

func TestWhatCannotBeMadeIsToldToWhoeverAsks(t *testing.T) {
	t.Parallel()
	p := newPool(t, backend(t), Options{Wait: time.Hour})
	// much shorter than Warm waits for a sandbox in the making
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := p.Get(ctx, sandbox.Spec{Image: "none"}); v1.CodeOf(err) != v1.CodeNotSupported {
		t.Fatalf("%v", err)
	}
	if err := p.Warm(t.Context(), sandbox.Spec{Image: "none"}); err == nil {
		t.Error("warmed")
	}
	if _, err := p.Get(t.Context(), sandbox.Spec{Limits: sandbox.Limits{Memory: -1}}); v1.CodeOf(err) != v1.CodeInvalidSpec {
		t.Errorf("%v", err)
	}
}

func TestCloseWhileBusy(t *testing.T) {
	t.Parallel()
	b := backend(t)
	p := New(b, Options{Min: 2, Target: 4, Max: 6})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			if sb, err := p.Get(ctx, sandbox.Spec{}); err == nil {
				_ = sb.Close()
			}
		})
	}
	testneed.Await(t, "some are being made", func() bool { return p.Stats().Making > 0 })
	p.Close()
	wg.Wait()
	if _, err := p.Get(t.Context(), sandbox.Spec{}); err == nil {
		t.Error("a closed pool gave a sandbox")
	}
	if left, err := b.List(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}
