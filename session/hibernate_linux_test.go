package session

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
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

func TestLookingIsNotUse(t *testing.T) {
	k := newBench(t, calm())
	s := k.open("work")
	v, err := s.Cell(t.Context(), sandbox.Cell{Code: "1"})
	if err != nil {
		t.Fatal(err)
	}
	used := s.Info().Used
	for name, look := range map[string]func() error{
		"operations":   func() error { _, err := s.Operations(t.Context()); return err },
		"interpreters": func() error { _, err := s.Contexts(t.Context()); return err },
		"the inside":   func() error { _, err := s.Guest(t.Context()); return err },
		"output":       func() error { _, err := s.Follow(t.Context(), v.ID, sandbox.FollowOptions{}); return err },
		"one of its variables": func() error {
			_, err := s.Var(t.Context(), "none")
			if sandbox.CodeOf(err) == CodeVarUnknown {
				return nil
			}
			return err
		},
		"events": func() error {
			for _, err := range s.Events(t.Context(), 0, false) {
				if err != nil {
					return err
				}
			}
			return nil
		},
	} {
		if err := look(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !s.Info().Used.Equal(used) {
			t.Fatalf("looking at %s counted as use", name)
		}
	}
}

func TestLookingKeepsNoSessionAwake(t *testing.T) {
	k := newBench(t, quick())
	s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Policy: Policy{Idle: 300 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	used := s.Info().Used
	asleep := Hibernated
	if !sleeps(k.b) {
		asleep = Expired
	}
	await(t, string(asleep)+" while somebody looks", func() bool {
		for range k.m.List(t.Context(), ListOptions{}) {
		}
		if _, err := s.Vars(t.Context()); err != nil && sandbox.CodeOf(err) != CodeExpired {
			t.Fatal(err)
		}
		return s.Info().State == asleep
	})
	if !s.Info().Used.Equal(used) {
		t.Error("looking counted as use")
	}
}

func TestWatchingKeepsNoSessionAwake(t *testing.T) {
	k := newBench(t, quick())
	s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Policy: Policy{Idle: 300 * time.Millisecond, OnIdle: IdleEnd}})
	if err != nil {
		t.Fatal(err)
	}
	used := s.Info().Used
	err = s.Watch(t.Context(), "", "/tmp", false, func(sandbox.FileEvent) error { return nil })
	wantCode(t, "a watcher when the session has ended", err, CodeExpired)
	if !s.Info().Used.Equal(used) {
		t.Error("watching counted as use")
	}
}

func TestAWatcherHearsThatItsSessionWasPutToSleepOrRestored(t *testing.T) {
	k := newBench(t, calm())
	s := k.open("work")
	save(t, s, "one")
	for name, leave := range map[string]func() error{
		"asleep":   func() error { return s.Hibernate(t.Context()) },
		"restored": func() error { return s.Restore(t.Context(), "one") },
	} {
		if name == "asleep" && !sleeps(k.b) {
			continue
		}
		py(t, s, "1")
		listens := make(chan struct{}, 100)
		heard := make(chan error, 1)
		go func() {
			heard <- s.Watch(t.Context(), "", "/tmp", false, func(sandbox.FileEvent) error { listens <- struct{}{}; return nil })
		}()
		select {
		case <-listens:
		case err := <-heard:
			t.Fatal("it does not listen: ", err)
		}
		if err := leave(); err != nil {
			t.Fatal(err)
		}
		wantCode(t, "a watcher of a session that is "+name, <-heard, CodeMoved)
	}
}

func TestReadingHoldsASessionAndRenewsNothing(t *testing.T) {
	k := newBench(t, calm())
	s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Policy: Policy{Idle: time.Minute, OnIdle: IdleEnd}})
	if err != nil {
		t.Fatal(err)
	}
	_, done, err := s.LookAtFiles(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	used := s.Info().Used
	late := used.Add(time.Hour)
	if s.due(late) != nil || !strings.Contains(s.Info().Reason, "transfer") {
		t.Errorf("a session from which somebody reads: %+v", s.Info())
	}
	done()
	if !s.Info().Used.Equal(used) {
		t.Error("reading counted as use")
	}
	if s.due(late) == nil {
		t.Error("it is kept when nobody reads any more")
	}
}

func TestASleeperFindsWhatItDidNotNote(t *testing.T) {
	k := newBench(t, quick())
	s := k.open("work")
	for i := range endedKept + 1 {
		py(t, s, fmt.Sprint(i))
	}
	all, err := s.Operations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Hibernate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if o, err := s.Operation(t.Context(), all[endedKept].ID); err != nil || o.ID != all[endedKept].ID {
		t.Errorf("the last: %+v, %v", o, err)
	}
	want(t, "state", string(s.Info().State), string(Hibernated))
	if o, err := s.Operation(t.Context(), all[0].ID); err != nil || o.ID != all[0].ID {
		t.Errorf("the first: %+v, %v", o, err)
	}
	want(t, "state", string(s.Info().State), string(Ready))
	_, err = s.Operation(t.Context(), "nosuch")
	wantCode(t, "one that never was", err, sandbox.CodeNotFound)
}

func TestLookingDoesNotWakeASleeper(t *testing.T) {
	k := newBench(t, quick())
	s := k.open("work")
	py(t, s, "x = 41")
	id, err := s.Start(t.Context(), sandbox.Command{Shell: "sleep 1000"})
	if err != nil {
		t.Fatal(err)
	}
	looks := func(s *Session) {
		t.Helper()
		ops, err := s.Operations(t.Context())
		i := slices.IndexFunc(ops, func(o sandbox.Operation) bool { return o.ID == id })
		if err != nil || len(ops) != 2 || i < 0 || !ops[i].Running || ops[i].PID == 0 || ops[1-i].Verdict == nil {
			t.Errorf("operations: %+v, %v", ops, err)
		}
		if all, err := s.Contexts(t.Context()); err != nil || len(all) != 1 || all[0].Name != defaultContext {
			t.Errorf("interpreters: %+v, %v", all, err)
		}
		if g, err := s.Guest(t.Context()); err != nil || g.Home != sandbox.DefaultHome {
			t.Errorf("the inside: %+v, %v", g, err)
		}
	}
	looks(s)
	if err := s.Hibernate(t.Context()); err != nil {
		t.Fatal(err)
	}
	looks(s)
	want(t, "state", string(s.Info().State), string(Hibernated))
	k.restart()
	s = k.get("work")
	looks(s)
	want(t, "state after a restart", string(s.Info().State), string(Hibernated))
	want(t, "x + 1", py(t, s, "x + 1"), "42")
	if ops, err := s.Operations(t.Context()); err != nil || len(ops) != 3 {
		t.Errorf("awake: %+v, %v", ops, err)
	}
	if err := s.Cancel(t.Context(), id); err != nil {
		t.Fatal(err)
	}
}

// calm looks at lifetimes only when the test does.
func calm() Options { return Options{NoPool: true, reapEvery: time.Hour} }

// overdue gives what the reaper would do about a session now, and fails if that is nothing.
func overdue(t *testing.T, s *Session) func() {
	t.Helper()
	act := s.due(time.Now())
	if act == nil {
		t.Fatal("its time is not up")
	}
	return act
}

func TestARenewalThatRacesTheReaperWinsOrIsTold(t *testing.T) {
	k := newBench(t, calm())
	open := func(name string, p Policy) *Session {
		s, _, err := k.m.Open(t.Context(), Key{Name: name}, OpenOptions{Policy: p})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	brief := Policy{TTL: time.Nanosecond, Extension: time.Hour}
	s := open("extended", brief)
	act := overdue(t, s)
	if _, err := s.Extend(t.Context(), 0); err != nil {
		t.Errorf("an extension that came first: %v", err)
	}
	act()
	want(t, "state after an extension", string(s.Info().State), string(Ready))

	s = open("expired", brief)
	overdue(t, s)()
	_, err := s.Extend(t.Context(), 0)
	wantCode(t, "an extension that came second", err, CodeExpired)

	s = open("both", brief)
	act = overdue(t, s)
	var wg sync.WaitGroup
	wg.Go(act)
	wg.Go(func() { _, err = s.Extend(t.Context(), 0) })
	wg.Wait()
	if state := s.Info().State; (err == nil) != state.Live() || err != nil && sandbox.CodeOf(err) != CodeExpired {
		t.Errorf("told %v, and it is %s", err, state)
	}

	s = open("used", Policy{Idle: time.Minute, OnIdle: IdleEnd})
	idle := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.rec.Used, s.rec.Since = time.Now().Add(-time.Hour), time.Now().Add(-time.Hour)
		s.rec.Policy.TTL = None
	}
	idle()
	act = overdue(t, s)
	py(t, s, "1")
	act()
	want(t, "state after a call", string(s.Info().State), string(Ready))
	idle()
	overdue(t, s)()
	_, err = s.Cell(t.Context(), sandbox.Cell{Code: "1"})
	wantCode(t, "a call that came second", err, CodeExpired)
}

func TestNoneIsForEver(t *testing.T) {
	k := newBench(t, calm())
	s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Policy: Policy{TTL: None, Idle: None, Hibernation: None}})
	if err != nil {
		t.Fatal(err)
	}
	ages := time.Now().Add(100 * 365 * 24 * time.Hour)
	look := func(when string) {
		t.Helper()
		if i := s.Info(); i.Expires != nil || i.IdleAt != nil || s.due(ages) != nil {
			t.Errorf("%s it ends at %v, and is idle at %v", when, i.Expires, i.IdleAt)
		}
	}
	look("new")
	if sleeps(k.b) {
		if err := s.Hibernate(t.Context()); err != nil {
			t.Fatal(err)
		}
		look("asleep")
	}
	k.restart()
	s = k.get("work")
	look("after a restart")
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

// lingering is a gate that takes its time to forget a session.
type lingering struct {
	strict
	begun, may chan struct{}
}

func (l lingering) Forget(string, string) {
	close(l.begun)
	<-l.may
}

func TestASessionThatExpiresWhileItsManagerIsClosedLeavesNothing(t *testing.T) {
	o, g := quick(), lingering{begun: make(chan struct{}), may: make(chan struct{})}
	o.Gate = g
	k := newBench(t, o)
	if _, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Policy: Policy{Idle: 50 * time.Millisecond, OnIdle: IdleEnd}}); err != nil {
		t.Fatal(err)
	}
	<-g.begun
	closed := make(chan error, 1)
	go func() { closed <- k.m.Close() }()
	await(t, "it is being closed", func() bool { k.m.mu.Lock(); defer k.m.mu.Unlock(); return k.m.leaving })
	close(g.may)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if n := k.sandboxes(); n != 0 {
		t.Errorf("%d sandboxes are left", n)
	}
}

func TestAManagerThatIsBeingClosedOpensNothing(t *testing.T) {
	o, g := quick(), lingering{begun: make(chan struct{}), may: make(chan struct{})}
	o.Gate = g
	k := newBench(t, o)
	s := k.open("work")
	closed := make(chan error, 1)
	go func() { closed <- k.m.Close() }()
	<-g.begun // the end of the session, which is under way
	<-s.disposed
	_, _, err := k.m.Open(t.Context(), Key{Name: "late"}, OpenOptions{})
	wantCode(t, "a session", err, sandbox.CodeOf(errClosing))
	close(g.may)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if n := k.sandboxes(); n != 0 {
		t.Errorf("%d sandboxes are left", n)
	}
}

func TestWhatRunsIsNotReaped(t *testing.T) {
	k := newBench(t, quick())
	s := k.open("work")
	id, err := s.Start(t.Context(), sandbox.Command{Shell: "while [ ! -e /tmp/stop ]; do sleep 0.05; done; echo over"})
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock() // only now, because on a busy machine the command takes a while to start
	s.rec.Policy.Idle, s.rec.Policy.TTL, s.dirty = time.Millisecond, time.Millisecond, true
	s.mu.Unlock()
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

func TestAManagerThatIsBeingClosedReapsNothing(t *testing.T) {
	k := newBench(t, calm())
	s := k.open("work")
	if _, err := s.Start(t.Context(), sandbox.Command{Shell: "sleep 1000"}); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.rec.Policy.TTL = time.Millisecond
	s.mu.Unlock()
	k.m.cancel() // as Detach does first
	await(t, "it no longer hears of the command", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.background) == 0 })
	if s.due(time.Now()) != nil {
		t.Error("a session in which a command runs would be reaped")
	}
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

func TestExtensionsWithoutABound(t *testing.T) {
	k := newBench(t, quick())
	s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Policy: Policy{TTL: time.Hour, Extensions: 2, Extension: None}})
	if err != nil {
		t.Fatal(err)
	}
	before := *s.Info().Expires
	for _, by := range []time.Duration{-time.Second, math.MaxInt64} {
		_, err := s.Extend(t.Context(), by)
		wantCode(t, by.String(), err, sandbox.CodeInvalidRequest)
		if strings.Contains(err.Error(), "-1ns") {
			t.Error(err)
		}
	}
	for _, by := range []time.Duration{0, 1000 * time.Hour} {
		if _, err := s.Extend(t.Context(), by); err != nil {
			t.Fatal(err)
		}
	}
	if by := s.Info().Expires.Sub(before); by != DefaultExtension+1000*time.Hour {
		t.Errorf("extended by %s", by)
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
