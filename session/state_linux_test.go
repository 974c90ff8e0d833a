package session

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// gated is a real backend that makes or restores a sandbox only after begin has returned.
type gated struct {
	sandbox.Backend
	begin func(ctx context.Context) error // called before each
}

func (g *gated) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Machine, error) {
	if err := g.begin(ctx); err != nil {
		return nil, err
	}
	return g.Backend.Start(ctx, spec)
}

func (g *gated) Restore(ctx context.Context, snap *sandbox.Snapshot, o sandbox.RestoreOptions) (sandbox.Machine, error) {
	if err := g.begin(ctx); err != nil {
		return nil, err
	}
	return g.Backend.Restore(ctx, snap, o)
}

// gate makes the next manager call f before it makes or restores a sandbox.
func (k *bench) gate(f func(ctx context.Context) error) {
	k.t.Helper()
	if err := k.m.Detach(k.t.Context()); err != nil {
		k.t.Fatal(err)
	}
	k.opts.Backends = []sandbox.Backend{&gated{Backend: k.b, begin: f}}
	k.start()
}

func TestEveryStateIsSeenWithItsReason(t *testing.T) {
	k := newBench(t, quick())
	// seen checks that the list shows a session in a state, with a reason.
	seen := func(name string, state State, reason string) {
		t.Helper()
		for i, err := range k.m.List(t.Context(), ListOptions{States: []State{state}}) {
			if err != nil {
				t.Fatal(err)
			}
			if i.Key.Name == name {
				want(t, "reason of "+string(state), i.Reason, reason)
				return
			}
		}
		t.Errorf("%s is not listed as %s", name, state)
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s := k.open("work")
	seen("work", v1.StateReady, "created")
	id, err := s.Start(t.Context(), sandbox.Command{Shell: "sleep 1000"})
	do(err)
	seen("work", v1.StateExecuting, "a command runs in the background")
	do(s.Cancel(t.Context(), id))
	k.awaitState(s, v1.StateReady)
	do(s.Pause(t.Context()))
	seen("work", v1.StatePaused, "by hand")
	do(s.Resume(t.Context()))
	seen("work", v1.StateReady, "resumed")
	if sleeps(k.b) {
		do(s.Hibernate(t.Context()))
		seen("work", v1.StateHibernated, "by hand")
		do(s.Resume(t.Context()))
		seen("work", v1.StateReady, "woken")
	}
	k.murder(s)
	await(t, "given up", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.rec.LostForGood })
	seen("work", v1.StateLost, s.Info().Reason)
	if s.Info().Reason == "" {
		t.Error("it is lost without a reason")
	}
	do(s.End(t.Context(), "done with it"))
	seen("work", v1.StateEnded, "done with it")

	brief, _, err := k.m.Open(t.Context(), Key{Name: "brief"}, OpenOptions{Settings: Settings{Policy: Policy{Idle: v1.Duration(time.Millisecond), OnIdle: v1.IdleEnd}}})
	do(err)
	k.awaitState(brief, v1.StateExpired)
	<-brief.freed
	seen("brief", v1.StateExpired, "idle for 1ms")

	may := make(chan struct{})
	k.gate(func(context.Context) error { <-may; return nil })
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, _, err := k.m.Open(t.Context(), Key{Name: "slow"}, OpenOptions{}); err != nil {
			t.Error(err)
		}
	})
	await(t, "it has begun", func() bool {
		k.m.mu.Lock()
		defer k.m.mu.Unlock()
		return k.m.live[Key{Tenant: DefaultTenant, Name: "slow"}] != nil
	})
	seen("slow", v1.StateCreating, "its sandbox is being created")
	close(may)
	wg.Wait()
}

func TestForksAreMadeAtOnce(t *testing.T) {
	k := newBench(t, quick())
	py(t, k.open("work"), "x = 41")
	const copies = 3
	var mu sync.Mutex
	begun, all := 0, make(chan struct{})
	k.gate(func(ctx context.Context) error {
		mu.Lock()
		if begun++; begun == copies {
			close(all)
		}
		mu.Unlock()
		select { // if they ran one after the other, they would never end
		case <-all:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Second):
			return errors.New("the others have not begun")
		}
	})
	forks, err := k.get("work").Fork(t.Context(), copies, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range forks {
		want(t, "x + 1", py(t, f, "x + 1"), "42")
	}
}
