package session

import (
	"context"
	"sync"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestAHibernatedSessionWakesWithItsState(t *testing.T) {
	k := newBench(t, quick())
	s := k.open("work")
	py(t, s, "x = 41")
	if err := s.Hibernate(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, "state", string(s.Info().State), string(v1.StateHibernated))
	if n, i := k.sandboxes(), k.images(); n != 0 || i != 1 {
		t.Errorf("hibernated: %d sandboxes and %d images", n, i)
	}
	if err := s.Hibernate(t.Context()); err != nil {
		t.Errorf("hibernating twice: %v", err)
	}
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() { want(t, "x + 1", py(t, s, "x + 1"), "42") })
	}
	wg.Wait()
	if n := k.sandboxes(); n != 1 {
		t.Errorf("ten callers woke %d sandboxes", n)
	}
	await(t, "the image goes", func() bool { return k.images() == 0 })
}

func TestAHibernatedSessionSurvivesARestart(t *testing.T) {
	k := newBench(t, quick())
	s := k.open("work")
	py(t, s, "x = 41")
	if err := s.Hibernate(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.restart()
	want(t, "state", string(k.get("work").Info().State), string(v1.StateHibernated))
	want(t, "x + 1", py(t, k.get("work"), "x + 1"), "42")
}

func TestIdleSessionsHibernate(t *testing.T) {
	k := newBench(t, quick())
	s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Settings: Settings{Policy: Policy{Idle: v1.Duration(100 * time.Millisecond)}}})
	if err != nil {
		t.Fatal(err)
	}
	py(t, s, "x = 41")
	k.awaitState(s, v1.StateHibernated)
	want(t, "x + 1", py(t, s, "x + 1"), "42")
	k.awaitState(s, v1.StateHibernated)
}

func TestPauseAndResume(t *testing.T) {
	k := newBench(t, quick())
	s := k.open("work")
	py(t, s, "x = 41")
	for range 2 {
		if err := s.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	_, err := s.Cell(t.Context(), sandbox.Cell{Code: "x"})
	wantCode(t, "a cell while paused", err, v1.CodeSessionPaused)
	k.restart()
	s = k.get("work")
	want(t, "state after a restart", string(s.Info().State), string(v1.StatePaused))
	for range 2 {
		if err := s.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	want(t, "x + 1", py(t, s, "x + 1"), "42")
	if sleeps(k.b) {
		if err := s.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.Hibernate(t.Context()); err != nil {
			t.Fatal(err)
		}
		want(t, "x + 1 after pause and hibernation", py(t, s, "x + 1"), "42")
	}
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.End(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	<-s.disposed
}

func TestABusySessionIsNotHibernated(t *testing.T) {
	k := newBench(t, quick())
	s := k.open("work")
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = s.Run(ctx, sandbox.Command{Shell: "sleep 100"}) // cancelled below
	}()
	k.awaitState(s, v1.StateExecuting)
	wantCode(t, "hibernate", s.Hibernate(t.Context()), v1.CodeBusy)
	cancel()
	<-over
	if err := s.Hibernate(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestBackgroundCommandsSleepAndWakeWithTheSession(t *testing.T) {
	k := newBench(t, quick())
	s := k.open("work")
	id, err := s.Start(t.Context(), sandbox.Command{Shell: "i=0; while [ ! -e /tmp/stop ]; do i=$((i+1)); sleep 0.05; done; echo whole"})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := s.Hibernate(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		want(t, "state", string(s.Info().State), string(v1.StateExecuting))
	}
	if _, err := s.Run(t.Context(), sandbox.Command{Shell: "touch /tmp/stop"}); err != nil {
		t.Fatal(err)
	}
	v, err := s.Follow(t.Context(), id, sandbox.FollowOptions{})
	if err != nil || v.Stdout.String() != "whole\n" {
		t.Errorf("%v, %v", v, err)
	}
	k.awaitState(s, v1.StateReady)
}
