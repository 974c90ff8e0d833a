package session

import (
	"testing"
	"time"
)

func TestASessionDoesNotWaitForADiskThatDoesNotAnswer(t *testing.T) {
	o := quick()
	o.journalRoom = 20
	k := newBench(t, o)
	s := k.open("work")
	k.m.journal.flushMu.Lock() // as if a batch were being written
	emitted := make(chan struct{})
	go func() {
		defer close(emitted)
		for range 3 * o.journalRoom {
			s.mu.Lock()
			s.emit(Event{Kind: "state"}, true)
			s.mu.Unlock()
		}
	}()
	select {
	case <-emitted:
	case <-time.After(20 * time.Second):
		t.Error("a session waits for the disk with its lock held")
	}
	k.m.journal.mu.Lock()
	waiting := len(k.m.journal.events)
	k.m.journal.mu.Unlock()
	k.m.journal.flushMu.Unlock()
	<-emitted
	if waiting > o.journalRoom {
		t.Errorf("%d events wait in memory, there is room for %d", waiting, o.journalRoom)
	}
	await(t, "they are written", func() bool {
		rows, err := k.m.store.Events(t.Context(), s.ID(), 0, 0)
		return err == nil && len(rows) >= waiting
	})
}
