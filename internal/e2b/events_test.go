package e2b

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/recluse-dev/recluse/internal/e2b/wire"
	"github.com/recluse-dev/recluse/internal/testneed"
)

func TestAQueueOfEventsIsBoundedAndInOrder(t *testing.T) {
	t.Parallel()
	var all atomic.Int64
	read := make(chan struct{})
	var sent []*wire.ProcessEvent
	e := newEvents(func(ev *wire.ProcessEvent) error {
		<-read
		sent = append(sent, ev)
		return nil
	}, &all)
	const piece, pieces = 1 << 20, 20
	var added atomic.Int64
	want := make([]*wire.ProcessEvent, pieces)
	for i := range want {
		want[i] = &wire.ProcessEvent{}
	}
	done := make(chan error, 1)
	go func() {
		for _, ev := range want {
			if err := e.add(ev, piece); err != nil {
				done <- err
				return
			}
			added.Add(1)
		}
		done <- e.flush()
	}()
	testneed.Await(t, "a full queue", func() bool { return added.Load() == maxQueued/piece })
	if n := all.Load(); n != maxQueued {
		t.Errorf("%d bytes in all queues", n)
	}
	close(read)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	e.close()
	if len(sent) != pieces || all.Load() != 0 {
		t.Fatalf("%d events, %d bytes", len(sent), all.Load())
	}
	for i := range want {
		if sent[i] != want[i] {
			t.Errorf("event %d is another one", i)
		}
	}
}

func TestACallerThatIsGoneEndsTheQueue(t *testing.T) {
	t.Parallel()
	var all atomic.Int64
	gone := errors.New("gone")
	e := newEvents(func(*wire.ProcessEvent) error { return gone }, &all)
	var err error
	for err == nil {
		err = e.add(&wire.ProcessEvent{}, maxQueued/2)
	}
	if !errors.Is(err, gone) || !errors.Is(e.flush(), gone) {
		t.Error(err)
	}
	e.close()
	if all.Load() != 0 {
		t.Errorf("%d bytes", all.Load())
	}
}
