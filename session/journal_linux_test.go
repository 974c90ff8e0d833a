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
	resume := k.m.journal.Pause() // as if a batch were being written
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
		t.Error("a session holds its lock while it waits for the disk")
	}
	resume()
	<-emitted
	await(t, "they are written", func() bool {
		rows, err := k.m.store.Events(t.Context(), s.ID(), 0, 0)
		return err == nil && len(rows) >= o.journalRoom
	})
}
