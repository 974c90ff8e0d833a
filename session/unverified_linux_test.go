package session

import (
	"slices"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// elderly returns a bench whose manager has no reaper and no health checks, and seems to have started long ago: within
// attachGrace after its start, sessions count as busy.
func elderly(t *testing.T) (*bench, *distant) {
	t.Helper()
	o := calm()
	o.healthEvery = time.Hour
	k, d := newDistantBenchWith(t, o)
	k.m.started = time.Now().Add(-time.Hour)
	return k, d
}

// outlive moves the expiry of a session to the past, so that only its running operations keep it alive.
func outlive(s *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rec.Expires, s.dirty = time.Now(), true
}

// spared checks that no action of the reaper is due for a session.
func spared(t *testing.T, s *Session, when string) {
	t.Helper()
	if s.due(time.Now()) != nil {
		t.Errorf("%s, it would be reaped", when)
	}
}

// inactive waits until the session knows of no running operation.
func inactive(t *testing.T, s *Session) {
	t.Helper()
	await(t, "nothing is known of what runs", func() bool { return s.Info().Running == 0 })
}

// rediscovered waits until health checks have found the operations that run in a session.
func rediscovered(t *testing.T, s *Session) {
	t.Helper()
	await(t, "what runs is found", func() bool { s.checkHealth(); return s.Info().Running == 1 })
	spared(t, s, "once what runs is found")
}

func background(t *testing.T, s *Session) (id string) {
	t.Helper()
	id, err := s.Start(t.Context(), sandbox.Command{Shell: "sleep 600"})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestWhatRunsIsNotReapedWhileTheWayToItIsBroken(t *testing.T) {
	policies := map[string]func(*Session){
		"its lifetime is over": outlive,
		"it is idle": func(s *Session) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.rec.Policy.Idle, s.rec.Policy.OnIdle, s.dirty = v1.Duration(time.Nanosecond), v1.IdleEnd, true
		},
	}
	for name, age := range policies {
		t.Run(name, func(t *testing.T) {
			k, d := elderly(t)
			s := k.open("work")
			id := s.Info().Sandbox
			background(t, s)
			age(s)
			resume := d.stall() // so that attaching again takes a while
			t.Cleanup(resume)
			d.deafen(s)
			inactive(t, s)
			spared(t, s, "when its command is no longer heard of")
			await(t, "its sandbox is looked for", func() bool { return d.waiting("list") > 0 })
			spared(t, s, "while its sandbox is looked for")
			resume()
			rediscovered(t, s)
			want(t, "sandbox", s.Info().Sandbox, id)
		})
	}
}

func TestACommandWhoseCallerIsCutOffIsNotReaped(t *testing.T) {
	k, d := elderly(t)
	s := k.open("work")
	failed := make(chan error, 1)
	go func() {
		_, err := s.Run(t.Context(), sandbox.Command{Shell: "sleep 600", RunOptions: sandbox.RunOptions{Timeout: v1.NoLimit, Detach: true}})
		failed <- err
	}()
	await(t, "it runs", func() bool {
		ops, err := s.Operations(t.Context())
		return err == nil && slices.ContainsFunc(ops, func(o sandbox.Operation) bool { return o.Running })
	})
	outlive(s)
	if err := s.acquireTurn(t.Context()); err != nil { // so that no other goroutine attaches it yet
		t.Fatal(err)
	}
	d.deafen(s)
	wantCode(t, "the call", <-failed, v1.CodeGuestLost)
	inactive(t, s)
	spared(t, s, "after the call has failed")
	s.releaseTurn()
	rediscovered(t, s)
}

func TestWhatRunsIsNotReapedWhileItsBackendGoesAway(t *testing.T) {
	k, d := elderly(t)
	s := k.open("work")
	background(t, s)
	outlive(s)
	if err := s.acquireTurn(t.Context()); err != nil { // so that its watcher handles the end late
		t.Fatal(err)
	}
	d.say(&v1.Error{Code: "engine_lost", Message: "the engine no longer answers", Retry: true}, true)
	inactive(t, s)
	spared(t, s, "before its watcher has seen it")
	s.releaseTurn()
	await(t, "it is let go of", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.attachment.sandbox == nil })
	spared(t, s, "after it was let go of")
	d.say(nil, false)
	rediscovered(t, s)
}

func TestASandboxThatDoesNotSayWhatRunsIsNotTakenForOneInWhichNothingDoes(t *testing.T) {
	k, _ := elderly(t)
	s := k.open("work")
	id := background(t, s)
	outlive(s)
	k.opts.pingWait = time.Nanosecond // for its answer
	k.restart()
	k.m.started = time.Now().Add(-time.Hour)
	s = k.get("work")
	var sb *sandbox.Sandbox
	await(t, "it is attached", func() bool { s.mu.Lock(); defer s.mu.Unlock(); sb = s.attachment.sandbox; return sb != nil })
	spared(t, s, "when its sandbox has not answered")
	k.m.opts.pingWait = pingWait
	rediscovered(t, s)
	if err := sb.Cancel(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	inactive(t, s)
	overdue(t, s)
}

func TestASandboxThatNeverSaysWhatRunsDoesNotLiveForEver(t *testing.T) {
	k, _ := elderly(t)
	s := k.open("work")
	outlive(s)
	if err := s.acquireTurn(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	sb := s.attachment.sandbox
	s.attachment.markUnverified()
	s.mu.Unlock()
	k.m.opts.pingWait = time.Nanosecond // for its answer
	for range busyMisses {
		spared(t, s, "while it is asked")
		s.queryOperations(sb)
	}
	k.m.opts.pingWait = pingWait
	s.releaseTurn()
	overdue(t, s)
}

func TestASessionWhoseSandboxDiesWithWhatRanInItExpires(t *testing.T) {
	k := newBench(t, quick())
	s := k.open("work")
	background(t, s)
	outlive(s)
	k.murder(s)
	k.awaitState(s, v1.StateExpired)
	<-s.disposed
}
