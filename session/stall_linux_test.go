package session

import (
	"context"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// stall blocks all requests to the backend until resume is called.
func (d *distant) stall() (resume func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	stalled := make(chan struct{})
	d.stalled, d.kept = stalled, map[string]int{}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.stalled == stalled {
			close(stalled)
			d.stalled = nil
		}
	}
}

// waiting returns the number of requests of a kind since the backend stalled.
func (d *distant) waiting(what string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.kept[what]
}

func TestAnEngineThatStallsIsNotTakenForASandboxThatHangs(t *testing.T) {
	o := quick()
	o.healthEvery, o.pingWait, o.reconnectWait = time.Hour, 100*time.Millisecond, 100*time.Millisecond
	k, d := newDistantBenchWith(t, o)
	s := k.open("work")
	py(t, s, "x = 41")
	id := s.Info().Sandbox
	resume := d.stall()
	t.Cleanup(resume)
	s.checkConnection(d.deafen(s))
	if i := s.Info(); i.State != v1.StateReady || i.Sandbox != id {
		t.Fatalf("%+v", i)
	}
	before := d.waiting("attach")
	k.m.begin(s.checkHealth)
	await(t, "it is looked for", func() bool { return d.waiting("attach") > before })
	detached := make(chan error, 1)
	go func() { detached <- k.m.Detach(context.Background()) }()
	select {
	case err := <-detached:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("a manager cannot be closed while its engine stalls")
	}
	resume()
	k.start()
	s = k.get("work")
	want(t, "x + 1", py(t, s, "x + 1"), "42")
	want(t, "sandbox", s.Info().Sandbox, id)
}
