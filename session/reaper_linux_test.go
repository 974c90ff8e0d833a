package session

import (
	"context"
	"math"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// calm disables the reaper, so that only the test checks lifetimes.
func calm() Options { return Options{NoPool: true, reapEvery: time.Hour} }

// overdue returns the action of the reaper that is due for a session. It fails the test if there is none.
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
		s, _, err := k.m.Open(t.Context(), Key{Name: name}, OpenOptions{Settings: Settings{Policy: p}})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	brief := Policy{Expires: v1.Duration(time.Nanosecond)}
	s := open("extended", brief)
	act := overdue(t, s)
	if _, err := s.Extend(t.Context(), 0); err != nil {
		t.Errorf("an extension that came first: %v", err)
	}
	act()
	want(t, "state after an extension", string(s.Info().State), string(v1.StateReady))

	s = open("expired", brief)
	overdue(t, s)()
	_, err := s.Extend(t.Context(), 0)
	wantCode(t, "an extension that came second", err, v1.CodeSessionExpired)

	s = open("both", brief)
	act = overdue(t, s)
	var wg sync.WaitGroup
	wg.Go(act)
	wg.Go(func() { _, err = s.Extend(t.Context(), 0) })
	wg.Wait()
	if state := s.Info().State; (err == nil) != state.Live() || err != nil && v1.CodeOf(err) != v1.CodeSessionExpired {
		t.Errorf("told %v, and it is %s", err, state)
	}

	s = open("used", Policy{Idle: v1.Duration(time.Minute), OnIdle: v1.IdleEnd})
	idle := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.rec.Used, s.rec.Woken = time.Now().Add(-time.Hour), time.Now().Add(-time.Hour)
	}
	idle()
	act = overdue(t, s)
	py(t, s, "1")
	act()
	want(t, "state after a call", string(s.Info().State), string(v1.StateReady))
	idle()
	overdue(t, s)()
	_, err = s.Cell(t.Context(), sandbox.Cell{Code: "1"})
	wantCode(t, "a call that came second", err, v1.CodeSessionExpired)
}

func TestNoneIsForEver(t *testing.T) {
	k := newBench(t, calm())
	s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Settings: Settings{Policy: Policy{Expires: v1.NoLimit, Idle: v1.NoLimit, Hibernation: v1.NoLimit}}})
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
	s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Settings: Settings{Policy: Policy{Idle: v1.Duration(50 * time.Millisecond), OnIdle: v1.IdleEnd}}})
	if err != nil {
		t.Fatal(err)
	}
	k.awaitState(s, v1.StateExpired)
	_, err = s.Cell(t.Context(), sandbox.Cell{Code: "1"})
	wantCode(t, "a cell", err, v1.CodeSessionExpired)
	<-s.freed
	_, err = k.m.Get(t.Context(), Key{Name: "work"})
	wantCode(t, "get", err, v1.CodeSessionExpired)
	if again := k.open("work"); again.ID() == s.ID() {
		t.Error("an expired session was found")
	}
}

// lingering is a gate whose Forget is slow.
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
	if _, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Settings: Settings{Policy: Policy{Idle: v1.Duration(50 * time.Millisecond), OnIdle: v1.IdleEnd}}}); err != nil {
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
	wantCode(t, "a session", err, v1.CodeOf(errClosing))
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
	s.rec.Policy.Idle, s.rec.Expires, s.dirty = v1.Duration(time.Millisecond), time.Now(), true
	s.mu.Unlock()
	await(t, "its lifetime passes", func() bool { return time.Now().After(*s.Info().Expires) })
	k.restart() // the new manager finds the command
	s = k.get("work")
	await(t, "the command is found", func() bool { return s.Info().Running == 1 })
	_, err = s.Cell(t.Context(), sandbox.Cell{Code: "1"})
	wantCode(t, "a cell after the lifetime", err, v1.CodeSessionExpired)
	for range 10 { // checks of the reaper
		time.Sleep(20 * time.Millisecond)
		want(t, "state", string(s.Info().State), string(v1.StateExecuting))
	}
	s.mu.Lock()
	sb := s.attachment.sandbox
	s.mu.Unlock()
	if _, err := sb.Run(t.Context(), sandbox.Command{Shell: "touch /tmp/stop"}); err != nil {
		t.Fatal(err)
	}
	if v, err := sb.Follow(t.Context(), id, sandbox.FollowOptions{}); err == nil && v.Stdout.String() != "over\n" {
		t.Errorf("its output is %q", v.Stdout.String())
	}
	k.awaitState(s, v1.StateExpired)
	<-s.disposed
}

func TestWhatRunsHasOvertimeAndNoMore(t *testing.T) {
	o := quick()
	o.overtime = time.Millisecond
	k := newBench(t, o)
	s := k.open("work")
	if _, err := s.Start(t.Context(), sandbox.Command{Shell: "sleep 1000"}); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.rec.Expires, s.dirty = time.Now(), true
	s.mu.Unlock()
	k.awaitState(s, v1.StateExpired)
	<-s.disposed
}

func TestAManagerThatIsBeingClosedReapsNothing(t *testing.T) {
	k := newBench(t, calm())
	s := k.open("work")
	if _, err := s.Start(t.Context(), sandbox.Command{Shell: "sleep 1000"}); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.rec.Expires = time.Now()
	s.mu.Unlock()
	k.m.cancel() // as Detach does first
	await(t, "it no longer hears of the command", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.background) == 0 })
	if s.due(time.Now()) != nil {
		t.Error("a session in which a command runs would be reaped")
	}
}

func TestTheEndIsMovedByExtendAlone(t *testing.T) {
	o := quick()
	o.Quota.MaxAge = new(v1.Duration(24 * time.Hour))
	k := newBench(t, o)
	s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Settings: Settings{Policy: Policy{Expires: v1.Duration(time.Hour)}}})
	if err != nil {
		t.Fatal(err)
	}
	created, before := s.Info().Created, *s.Info().Expires
	py(t, s, "1")
	if at := *s.Info().Expires; !at.Equal(before) || before.Sub(created) != time.Hour {
		t.Errorf("it was created at %s and to end at %s; after a use it ends at %s", created, before, at)
	}
	for _, by := range []time.Duration{-time.Second, math.MaxInt64} {
		_, err := s.Extend(t.Context(), by)
		wantCode(t, by.String(), err, v1.CodeInvalidRequest)
	}
	for _, by := range []time.Duration{0, 10 * time.Hour, time.Hour} { // from the present end, any number of times
		if _, err := s.Extend(t.Context(), by); err != nil {
			t.Fatal(err)
		}
	}
	_, err = s.Extend(t.Context(), 12*time.Hour)
	wantCode(t, "beyond max_age", err, v1.CodeQuotaExceeded)
	if err == nil || !strings.Contains(err.Error(), "max_age: limit 1d, 11h30m left, 12h requested") {
		t.Errorf("told %v", err)
	}
	k.restart()
	s = k.get("work")
	if by := s.Info().Expires.Sub(before); by != DefaultExtension+11*time.Hour {
		t.Errorf("extended by %s", by)
	}
	s.mu.Lock()
	s.rec.Expires = time.Now().Add(-time.Minute) // the reaper has not seen it yet
	s.attachment.reserve()
	s.mu.Unlock()
	if _, err := s.Extend(t.Context(), time.Minute); err != nil || time.Until(*s.Info().Expires) < 50*time.Second {
		t.Errorf("from now on it ends at %s, %v", s.Info().Expires, err)
	}
	s.release()
}

func TestNoSessionGetsOlderThanItsOperatorAllows(t *testing.T) {
	o := quick()
	o.Quota.MaxAge = new(v1.Duration(time.Hour))
	k := newBench(t, o)
	s := k.open("work")
	if i := s.Info(); i.Expires == nil || i.Expires.Sub(i.Created) != time.Hour || i.Policy.Expires.Std() != time.Hour {
		t.Errorf("it ends at %v, and its policy is %s", i.Expires, i.Policy.Expires)
	}
	for _, expires := range []v1.Duration{v1.Duration(2 * time.Hour), v1.NoLimit} {
		_, _, err := k.m.Open(t.Context(), Key{Name: "old"}, OpenOptions{Settings: Settings{Policy: Policy{Expires: expires}}})
		wantCode(t, expires.String(), err, v1.CodeQuotaExceeded)
	}
}

func TestASessionWithoutAnEndStaysWithoutOne(t *testing.T) {
	k := newBench(t, quick())
	s := k.open("work")
	if i, err := s.Extend(t.Context(), time.Hour); err != nil || i.Expires != nil {
		t.Errorf("it ends at %v, %v", i.Expires, err)
	}
}

func TestHibernationCountsForTheEnd(t *testing.T) {
	t.Parallel()
	created := time.Now()
	r := record{State: v1.StateHibernated, Created: created, Expires: created.Add(time.Hour), HibernatedAt: created, Policy: Policy{Hibernation: v1.Duration(24 * time.Hour)}}
	if at, ok := r.expires(); !ok || !at.Equal(r.Expires) {
		t.Errorf("it expires at %s", at)
	}
	r.Policy.Hibernation = v1.Duration(time.Minute)
	if at, ok := r.expires(); !ok || !at.Equal(created.Add(time.Minute)) || !strings.Contains(r.expiryReason(), "hibernated for 1m") {
		t.Errorf("it expires at %s: %s", at, r.expiryReason())
	}
}

// Every kind of use renews the idle timeout, and other calls do not.
func TestWhatIsUse(t *testing.T) {
	k := newBench(t, calm())
	s := k.open("work")
	ctx := t.Context()
	long := time.Now().Add(-time.Hour)
	check := func(name string, renews bool, do func() error) {
		t.Helper()
		s.mu.Lock()
		s.rec.Used = long
		s.mu.Unlock()
		if err := do(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := s.Info().Used.After(long); got != renews {
			t.Errorf("%s renews: %v, want %v", name, got, renews)
		}
	}
	check("a cell", true, func() error { _, err := s.Cell(ctx, sandbox.Cell{Code: "1"}); return err })
	check("a command", true, func() error { _, err := s.Run(ctx, sandbox.Command{Shell: "true"}); return err })
	check("a terminal", true, func() error {
		_, err := s.Run(ctx, sandbox.Command{Shell: "true", PTY: &sandbox.Size{Rows: 24, Cols: 80}})
		return err
	})
	check("a background command", true, func() error { _, err := s.Start(ctx, sandbox.Command{Shell: "sleep 0.01"}); return err })
	await(t, "it ends", func() bool { return s.Info().Running == 0 })
	check("an upload", true, func() error { return s.Files().WriteAll(ctx, "/tmp/f", []byte("x"), sandbox.WriteOptions{}) })
	check("a download", true, func() error { _, err := s.Files().ReadAll(ctx, "/tmp/f"); return err })
	check("a download by somebody who only reads", false, func() error { _, err := s.PeekFiles().ReadAll(ctx, "/tmp/f"); return err })
	watch := func(f sandbox.FileSystem) func() error {
		return func() error {
			brief, cancel := context.WithCancel(ctx)
			cancel()
			// it is given up at once
			_ = f.Watch(brief, "/tmp", sandbox.WatchOptions{}, func(sandbox.FileEvent) error { return nil })
			return nil
		}
	}
	check("to begin to watch", true, watch(s.Files()))
	check("to watch by somebody who only reads", false, watch(s.PeekFiles()))
	check("to set a variable", true, func() error { return s.SetVar(ctx, "a", "1") })
	check("to read a variable", false, func() error { _, err := s.Var(ctx, "a"); return err })
	check("to list operations", false, func() error { _, err := s.Operations(ctx); return err })
	check("to extend", false, func() error { _, err := s.Extend(ctx, 0); return err })
}

// Calls race with a frequent reaper: every call must find the state that the previous call left.
func TestCallsRaceTheReaper(t *testing.T) {
	k := newBench(t, quick())
	s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Settings: Settings{Policy: Policy{Idle: v1.Duration(time.Millisecond)}}})
	if err != nil {
		t.Fatal(err)
	}
	py(t, s, "n = 0")
	asleep, racing := rounds(2, 6), rounds(20, 50)
	for range asleep {
		py(t, s, "n += 1")
		k.awaitState(s, v1.StateHibernated)
	}
	for range racing {
		py(t, s, "n += 1")
	}
	want(t, "n", py(t, s, "n"), strconv.Itoa(asleep+racing))
}
