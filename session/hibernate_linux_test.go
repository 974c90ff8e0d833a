package session

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/recluse-dev/recluse/sandbox"
)

func TestAHibernatedSessionWakesWithItsState(t *testing.T) {
	k := newBench(t, quick())
	s := k.open("work")
	py(t, s, "x = 41")
	if err := s.Hibernate(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, "state", string(s.Info().State), string(Hibernated))
	if n, i := k.sandboxes(), k.images(); n != 0 || i != 1 {
		t.Errorf("asleep there are %d sandboxes and %d images", n, i)
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
	want(t, "state", string(k.get("work").Info().State), string(Hibernated))
	want(t, "x + 1", py(t, k.get("work"), "x + 1"), "42")
}

func TestIdleSessionsHibernate(t *testing.T) {
	k := newBench(t, quick())
	s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Policy: Policy{Idle: 100 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	py(t, s, "x = 41")
	k.awaitState(s, Hibernated)
	want(t, "x + 1", py(t, s, "x + 1"), "42")
	k.awaitState(s, Hibernated)
}

func TestLookingKeepsNoSessionAwake(t *testing.T) {
	k := newBench(t, quick())
	s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Policy: Policy{Idle: 300 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	used := s.Info().Used
	await(t, "hibernated while somebody looks", func() bool {
		for range k.m.List(t.Context(), ListOptions{}) {
		}
		if _, err := s.Vars(t.Context()); err != nil {
			t.Fatal(err)
		}
		return s.Info().State == Hibernated
	})
	if !s.Info().Used.Equal(used) {
		t.Error("looking counted as use")
	}
}

func TestIdleSessionsEndIfTheyShall(t *testing.T) {
	k := newBench(t, quick())
	s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Policy: Policy{Idle: 50 * time.Millisecond, OnIdle: IdleEnd}})
	if err != nil {
		t.Fatal(err)
	}
	k.awaitState(s, Expired)
	_, err = s.Cell(t.Context(), sandbox.Cell{Code: "1"})
	wantCode(t, "a cell", err, CodeExpired)
	<-s.freed
	_, err = k.m.Get(t.Context(), Key{Name: "work"})
	wantCode(t, "get", err, CodeExpired)
	if again := k.open("work"); again.ID() == s.ID() {
		t.Error("an expired session was found")
	}
}

func TestWhatRunsIsNotReaped(t *testing.T) {
	k := newBench(t, quick())
	// Long enough for the command to start, on a busy machine too.
	s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Policy: Policy{Idle: 3 * time.Second, TTL: 3 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	id, err := s.Start(t.Context(), sandbox.Command{Shell: "while [ ! -e /tmp/stop ]; do sleep 0.05; done; echo over"})
	if err != nil {
		t.Fatal(err)
	}
	await(t, "its lifetime passes", func() bool { return time.Now().After(*s.Info().Expires) })
	k.restart() // the new manager finds the command
	s = k.get("work")
	await(t, "the command is found", func() bool { return s.Info().Running == 1 })
	_, err = s.Cell(t.Context(), sandbox.Cell{Code: "1"})
	wantCode(t, "a cell after the lifetime", err, CodeExpired)
	for range 10 { // looks of the reaper
		time.Sleep(20 * time.Millisecond)
		want(t, "state", string(s.Info().State), string(Executing))
	}
	s.mu.Lock()
	sb := s.sb
	s.mu.Unlock()
	if _, err := sb.Run(t.Context(), sandbox.Command{Shell: "touch /tmp/stop"}); err != nil {
		t.Fatal(err)
	}
	if v, err := sb.Follow(t.Context(), id, sandbox.FollowOptions{}); err == nil && v.Stdout.String() != "over\n" {
		t.Errorf("its output is %q", v.Stdout.String())
	}
	k.awaitState(s, Expired)
	<-s.disposed
}

func TestExtensions(t *testing.T) {
	k := newBench(t, quick())
	s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Policy: Policy{TTL: time.Hour, Extensions: 2, Extension: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	before := *s.Info().Expires
	_, err = s.Extend(t.Context(), time.Hour)
	wantCode(t, "too much at once", err, sandbox.CodeInvalidRequest)
	for range 2 {
		if _, err := s.Extend(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	}
	_, err = s.Extend(t.Context(), time.Second)
	wantCode(t, "a third", err, CodeNoExtension)
	k.restart()
	i := k.get("work").Info()
	if i.Extended != 2 || i.Expires.Sub(before) != 2*time.Minute {
		t.Errorf("extended %d times, by %s", i.Extended, i.Expires.Sub(before))
	}
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
	wantCode(t, "a cell while paused", err, CodePaused)
	k.restart()
	s = k.get("work")
	want(t, "state after a restart", string(s.Info().State), string(Paused))
	for range 2 {
		if err := s.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	want(t, "x + 1", py(t, s, "x + 1"), "42")
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Hibernate(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, "x + 1 after pause and hibernation", py(t, s, "x + 1"), "42")
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
	k.awaitState(s, Executing)
	wantCode(t, "hibernate", s.Hibernate(t.Context()), sandbox.CodeBusy)
	cancel()
	<-over
	if err := s.Hibernate(t.Context()); err != nil {
		t.Error(err)
	}
}

// Calls and an eager reaper race each other: every call must be answered with the state it left.
func TestCallsRaceTheReaper(t *testing.T) {
	k := newBench(t, quick())
	s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Policy: Policy{Idle: time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	py(t, s, "n = 0")
	for range 6 {
		py(t, s, "n += 1")
		k.awaitState(s, Hibernated)
	}
	for range 50 {
		py(t, s, "n += 1")
	}
	want(t, "n", py(t, s, "n"), "56")
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
		want(t, "state", string(s.Info().State), string(Executing))
	}
	if _, err := s.Run(t.Context(), sandbox.Command{Shell: "touch /tmp/stop"}); err != nil {
		t.Fatal(err)
	}
	v, err := s.Follow(t.Context(), id, sandbox.FollowOptions{})
	if err != nil || v.Stdout.String() != "whole\n" {
		t.Errorf("%v, %v", v, err)
	}
	k.awaitState(s, Ready)
}
