package session

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// watchful sets short timeouts for sandboxes. Health checks begin when the test calls watch, because on a busy machine
// a healthy sandbox may not answer in time.
func watchful() Options {
	o := quick()
	o.healthEvery, o.pingWait, o.reconnectWait = time.Hour, time.Second, time.Second
	return o
}

// watch starts frequent health checks.
func (k *bench) watch() { k.m.begin(func() { k.m.checkHealth(100 * time.Millisecond) }) }

// awaitJudged is await for the reaction to a sandbox that hangs, which is pinged several times before.
func (k *bench) awaitJudged(what string, f func() bool) {
	k.t.Helper()
	awaitBehind(k.t, (busyMisses+1)*k.m.opts.pingWait+k.m.opts.reconnectWait, what, f)
}

// stall stops the process of a session's sandbox, so that it neither answers nor ends.
func (k *bench) stall(s *Session) {
	k.t.Helper()
	k.signal(s, syscall.SIGSTOP)
}

// signal sends a signal to the process of a session's sandbox.
func (k *bench) signal(s *Session, sig syscall.Signal) {
	k.t.Helper()
	if err := syscall.Kill(k.process(s), sig); err != nil {
		k.t.Fatal(err)
	}
}

func (k *bench) process(s *Session) int {
	k.t.Helper()
	pid, err := process(k.t.Context(), k.b, s.Info().Sandbox)
	if err != nil {
		k.t.Fatal(err)
	}
	return pid
}

func TestASandboxThatHangsIsReplaced(t *testing.T) {
	k := newBench(t, watchful())
	s := k.open("work")
	py(t, s, note(1))
	save(t, s, "one")
	py(t, s, note(2))
	hung := s.Info().Sandbox
	k.stall(s)
	k.watch()
	k.awaitJudged("restored", func() bool { return s.Info().Restored >= 1 })
	v, err := s.Cell(t.Context(), sandbox.Cell{Code: noted(k.b)})
	if err != nil || v.Result.Text() != "1" || v.Metadata[MetaStateFrom] == "" {
		t.Errorf("%v, %v", v, err)
	}
	for _, i := range list(k.b) {
		if i.ID == hung {
			t.Errorf("the hanging sandbox is left: %+v", i)
		}
	}
	if err := k.m.DeleteSnapshot(t.Context(), Key{Name: "work"}, "*"); err != nil {
		t.Fatal(err)
	}
}

func TestASandboxThatHangsWithoutASnapshotIsLost(t *testing.T) {
	k := newBench(t, watchful())
	s := k.open("work")
	k.stall(s)
	k.watch()
	k.awaitJudged("given up", func() bool { return strings.Contains(s.Info().Reason, "no snapshot") })
	_, err := s.Cell(t.Context(), sandbox.Cell{Code: "x"})
	wantCode(t, "a cell", err, v1.CodeSessionLost)
	await(t, "what hangs is ended", func() bool { return k.sandboxes() == 0 })
}

func TestACallInASandboxThatHangsIsToldSo(t *testing.T) {
	k := newBench(t, watchful())
	s := k.open("work")
	py(t, s, note(1))
	save(t, s, "one")
	failed := make(chan error, 1)
	go func() {
		_, err := s.Cell(t.Context(), sandbox.Cell{Code: "import time\ntime.sleep(600)"})
		failed <- err
	}()
	await(t, "the cell runs", func() bool {
		ops, err := s.Operations(t.Context())
		return err == nil && slices.ContainsFunc(ops, func(o sandbox.Operation) bool { return o.Running })
	})
	k.stall(s)
	k.watch()
	select {
	case err := <-failed:
		if code := v1.CodeOf(err); code != v1.CodeGuestLost && code != v1.CodeSandboxLost {
			t.Errorf("the cell: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the call does not return")
	}
	k.awaitJudged("restored", func() bool { return s.Info().Restored >= 1 })
	want(t, "x", py(t, s, noted(k.b)), "1")
	if err := k.m.DeleteSnapshot(t.Context(), Key{Name: "work"}, "*"); err != nil {
		t.Fatal(err)
	}
}

func TestABusySandboxIsNotTakenForOneThatHangs(t *testing.T) {
	o := quick()
	o.healthEvery = 50 * time.Millisecond
	k := newBench(t, o)
	s := k.open("work")
	v, err := s.Run(t.Context(), sandbox.Command{Shell: "for i in 1 2 3 4; do (timeout 2 sh -c 'while :; do :; done') & done; wait; echo done"})
	if err != nil || v.Stdout.String() != "done\n" {
		t.Errorf("%v, %v", v, err)
	}
	if i := s.Info(); i.Restored != 0 || i.State != v1.StateReady {
		t.Errorf("%+v", i)
	}
}

func TestASandboxInWhichACommandRunsMayMissPings(t *testing.T) {
	o := quick()
	o.healthEvery, o.pingWait, o.reconnectWait = time.Hour, 100*time.Millisecond, 100*time.Millisecond
	k := newBench(t, o)
	s := k.open("work")
	if _, err := s.Start(t.Context(), sandbox.Command{Shell: "sleep 600"}); err != nil { // no call waits for it
		t.Fatal(err)
	}
	state := func() (sb *sandbox.Sandbox, missed int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.attachment.sandbox, s.attachment.missedPings
	}
	before, _ := state()
	k.stall(s)
	await(t, "it misses as many pings as it may", func() bool { // it may answer once more before it stops
		s.checkHealth()
		after, missed := state()
		if after != before {
			t.Fatalf("it was abandoned after %d", missed)
		}
		return missed == busyMisses-1
	})
	k.signal(s, syscall.SIGCONT)
	if err := s.acquireTurn(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.markUnreachable(before, errors.New("the way to it broke"))
	s.releaseTurn()
	await(t, "it is attached again", func() bool { return s.ensureAttached(t.Context()) == nil })
	if after, missed := state(); after == nil || missed != 0 {
		t.Errorf("attached again it has missed %d pings", missed)
	}
}
