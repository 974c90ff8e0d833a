package session

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
)

func TestAnImageThatIsBeingReadStaysUntilItWasRead(t *testing.T) {
	for name, read := range map[string]func(k *bench, s *Session) (*Session, error){
		"by a restore": func(k *bench, s *Session) (*Session, error) { return s, s.Restore(k.t.Context(), "one") },
		"by a new session": func(k *bench, _ *Session) (*Session, error) {
			made, _, err := k.m.Open(k.t.Context(), Key{Name: "new"}, OpenOptions{Settings: Settings{From: "work@one"}})
			return made, err
		},
		"to bring a lost session back": func(k *bench, s *Session) (*Session, error) {
			k.murder(s)
			_, err := s.awaitSandbox(k.t.Context())
			return s, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := newBench(t, quick())
			py(t, k.open("work"), note(41))
			save(t, k.open("work"), "one")
			begun, may := make(chan struct{}), make(chan struct{})
			begin := sync.OnceFunc(func() { close(begun) })
			k.gate(func(context.Context) error { begin(); <-may; return nil })
			type outcome struct {
				s   *Session
				err error
			}
			done := make(chan outcome, 1)
			s := k.get("work")
			go func() {
				s, err := read(k, s)
				done <- outcome{s, err}
			}()
			<-begun
			if err := k.m.DeleteSnapshot(t.Context(), Key{Name: "work"}, "one"); err != nil {
				t.Error(err)
			}
			if n := k.images(); n != 1 {
				t.Errorf("%d images while a call reads it", n)
			}
			close(may)
			got := <-done
			if got.err != nil {
				t.Fatal(got.err)
			}
			want(t, "x", py(t, got.s, noted(k.b)), "41")
			await(t, "the image goes", func() bool { return k.images() == 0 })
		})
	}
}

// reluctant is a real backend that deletes its first image slowly.
type reluctant struct {
	sandbox.Backend
	first      atomic.Bool
	begun, may chan struct{}
}

func (r *reluctant) DeleteSnapshot(ctx context.Context, id string) error {
	if r.first.CompareAndSwap(false, true) {
		close(r.begun)
		<-r.may
	}
	return r.Backend.DeleteSnapshot(ctx, id)
}

func TestAnImageThatIsBeingRemovedHoldsUpNobodyElse(t *testing.T) {
	k := newBench(t, quick())
	s := k.open("work")
	py(t, s, note(41))
	save(t, s, "one")
	save(t, s, "two")
	row, err := k.m.findSnapshot(t.Context(), DefaultTenant, "work", "one")
	if err != nil {
		t.Fatal(err)
	}
	going, err := imageOf(row)
	if err != nil {
		t.Fatal(err)
	}
	r := &reluctant{Backend: k.b, begun: make(chan struct{}), may: make(chan struct{})}
	k.opts.Backends = []sandbox.Backend{r}
	k.restart()
	deleted := make(chan error, 1)
	go func() { deleted <- k.m.DeleteSnapshot(t.Context(), Key{Name: "work"}, "one") }()
	<-r.begun
	held := make(chan struct{})
	go func() {
		k.m.pinImage(going)()
		close(held)
	}()
	restored := make(chan error, 1)
	go func() { restored <- k.get("work").Restore(t.Context(), "two") }()
	select {
	case err := <-restored:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("a caller of another image waits for the removal")
	}
	select {
	case <-held:
		t.Error("an image was taken while it was being removed")
	default:
	}
	close(r.may)
	<-held
	if err := <-deleted; err != nil {
		t.Error(err)
	}
	want(t, "x", py(t, k.get("work"), noted(k.b)), "41")
	if err := k.m.DeleteSnapshot(t.Context(), Key{Name: "work"}, "two"); err != nil {
		t.Fatal(err)
	}
}
