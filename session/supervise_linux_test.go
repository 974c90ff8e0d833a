package session

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// murder kills the process of a session's sandbox.
func (k *bench) murder(s *Session) {
	k.t.Helper()
	id := s.Info().Sandbox
	k.signal(s, syscall.SIGKILL)
	await(k.t, "the sandbox is gone", func() bool { return s.Info().Sandbox != id || s.Info().State == v1.StateLost })
}

func TestALostSandboxIsRestoredAndTheCallerTold(t *testing.T) {
	k := newBench(t, quick())
	s := k.open("work")
	py(t, s, note(1))
	snap := save(t, s, "one")
	py(t, s, note(2))
	k.murder(s)
	v, err := s.Cell(t.Context(), sandbox.Cell{Code: noted(k.b)})
	if err != nil {
		t.Fatal(err)
	}
	want(t, "x", v.Result.Text(), "1")
	from, err := time.Parse(time.RFC3339Nano, v.Metadata[MetaStateFrom])
	if err != nil || !from.Equal(snap.Created) {
		t.Errorf("the verdict reports a state from %q, want %s", v.Metadata[MetaStateFrom], snap.Created)
	}
	v, err = s.Cell(t.Context(), sandbox.Cell{Code: noted(k.b)})
	if err != nil || len(v.Metadata) != 0 {
		t.Errorf("reported twice: %v, %v", v, err)
	}
	if i := s.Info(); i.Restored != 1 || i.State != v1.StateReady {
		t.Errorf("info %+v", i)
	}
	kinds := map[string]int{}
	for e, err := range s.Events(t.Context(), EventsOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		kinds[e.Kind+string(e.State)]++
	}
	if kinds["restored"] != 1 || kinds["statelost"] != 1 || kinds["stateready"] != 2 || kinds["operation"] != 4 {
		t.Errorf("events %v", kinds)
	}
}

func TestASessionIsLostAfterThreeRestores(t *testing.T) {
	heard := make(chan Alert, 10)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var a Alert
		if err := json.NewDecoder(r.Body).Decode(&a); err != nil {
			t.Error(err)
		}
		heard <- a
	}))
	defer hook.Close()
	o := quick()
	o.Webhook = hook.URL
	o.backoff = [RestoreAttempts]time.Duration{0, 200 * time.Millisecond, time.Second}
	k := newBench(t, o)
	s := k.open("work")
	py(t, s, note(1))
	save(t, s, "one")
	for n := range RestoreAttempts {
		k.murder(s)
		await(t, "restored", func() bool { return s.Info().Restored == n+1 })
		s.mu.Lock()
		losses := slices.Clone(s.rec.Losses)
		s.mu.Unlock()
		if len(losses) != n+1 {
			t.Fatalf("%d attempts are counted, want %d", len(losses), n+1)
		}
		if pause := time.Since(losses[n]); pause < o.backoff[n] {
			t.Errorf("attempt %d came after %s, want at least %s", n, pause, o.backoff[n])
		}
	}
	k.murder(s)
	await(t, "given up", func() bool { return strings.Contains(s.Info().Reason, "times within") })
	_, err := s.Cell(t.Context(), sandbox.Cell{Code: "x"})
	wantCode(t, "a cell", err, v1.CodeSessionLost)
	a := <-heard
	if a.Event != "session.lost" || a.Session.Key.Name != "work" || a.Session.State != v1.StateLost {
		t.Errorf("the webhook received %+v", a)
	}
	k.restart()
	s = k.get("work")
	want(t, "state after a restart", string(s.Info().State), string(v1.StateLost))
	if err := s.Restore(t.Context(), "one"); err != nil { // by hand it may be tried again
		t.Fatal(err)
	}
	want(t, "x", py(t, s, noted(k.b)), "1")
	if err := k.m.DeleteSnapshot(t.Context(), Key{Name: "work"}, "*"); err != nil {
		t.Fatal(err)
	}
}

func TestTheAddressOfAWebhookIsNotLogged(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	const secret = "/SECRET?token=SECRET#SECRET"
	log := &lines{}
	k := newBench(t, quick())
	k.opts.Webhook, k.opts.Logger = gone.URL+secret, slog.New(slog.NewJSONHandler(log, nil))
	k.restart()
	k.murder(k.open("work"))
	await(t, "the failure is logged", func() bool { return strings.Contains(log.String(), "webhook could not be notified") })
	if text := log.String(); strings.Contains(text, "SECRET") {
		t.Error(text)
	}
}

func TestLossesOutsideTheWindowAreForgotten(t *testing.T) {
	k := newBench(t, quick())
	s := k.open("work")
	py(t, s, note(41))
	save(t, s, "one")
	age := func(by time.Duration) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.rec.Losses = nil
		for range RestoreAttempts {
			s.rec.Losses = append(s.rec.Losses, time.Now().Add(-by))
		}
	}
	age(RestoreWindow + time.Second)
	k.murder(s)
	want(t, "x", py(t, s, noted(k.b)), "41")
	age(RestoreWindow / 2)
	k.murder(s)
	await(t, "given up", func() bool { return strings.Contains(s.Info().Reason, "times within") })
	if err := k.m.DeleteSnapshot(t.Context(), Key{Name: "work"}, "*"); err != nil {
		t.Fatal(err)
	}
}

func TestASessionWithoutASnapshotIsLostAtOnce(t *testing.T) {
	k := newBench(t, quick())
	s := k.open("work")
	k.murder(s)
	await(t, "given up", func() bool { return strings.Contains(s.Info().Reason, "no snapshot") })
	_, err := s.Cell(t.Context(), sandbox.Cell{Code: "x"})
	wantCode(t, "a cell", err, v1.CodeSessionLost)
	if n := k.sandboxes(); n != 0 {
		t.Errorf("%d sandboxes are left", n)
	}
	if err := s.End(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	want(t, "a new session", py(t, k.open("work"), "1"), "1")
}

func TestASandboxLostWhileNobodyLooked(t *testing.T) {
	k := newBench(t, quick())
	with, without := k.open("with"), k.open("without")
	py(t, with, note(1))
	save(t, with, "one")
	py(t, with, note(2))
	pids := map[string]int{}
	for _, s := range []*Session{with, without} {
		pids[s.Info().Sandbox] = k.process(s)
	}
	if err := k.m.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	for id, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		await(t, "dead", func() bool {
			for _, i := range list(k.b) {
				if i.ID == id && i.Running {
					return false
				}
			}
			return true
		})
	}
	k.start()
	v, err := k.get("with").Cell(t.Context(), sandbox.Cell{Code: noted(k.b)})
	if err != nil || v.Result.Text() != "1" || v.Metadata[MetaStateFrom] == "" {
		t.Errorf("%v, %v", v, err)
	}
	s := k.get("without")
	await(t, "given up", func() bool { return strings.Contains(s.Info().Reason, "no snapshot") })
	await(t, "remnants removed", func() bool { return k.sandboxes() == 1 })
	if err := k.m.DeleteSnapshot(t.Context(), Key{Name: "with"}, "*"); err != nil {
		t.Fatal(err)
	}
}

func TestQueueIsBoundedAndCancellable(t *testing.T) {
	k := newBench(t, quick())
	s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Settings: Settings{Policy: Policy{Commands: 3}}})
	if err != nil {
		t.Fatal(err)
	}
	py(t, s, "order = []; import time, os")
	users := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.queues[defaultContext] == nil {
			return 0
		}
		return s.queues[defaultContext].users
	}
	// add starts cell n and waits until it is the last of the given number in the queue.
	add := func(n, many int) (gone chan error, cancel context.CancelFunc) {
		ctx, cancel := context.WithCancel(t.Context())
		gone = make(chan error, 1)
		go func() {
			_, err := s.Cell(ctx, sandbox.Cell{Code: "order.append(" + strconv.Itoa(n) + ")\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)"})
			gone <- err
		}()
		await(t, "it is in the queue", func() bool { return users() == many && s.Info().Running == many })
		return gone, cancel
	}
	var all []chan error
	var cancels []context.CancelFunc
	for i := range 3 {
		gone, cancel := add(i, i+1)
		defer cancel()
		all, cancels = append(all, gone), append(cancels, cancel)
	}
	_, err = s.Cell(t.Context(), sandbox.Cell{Code: "1"})
	wantCode(t, "a fourth", err, v1.CodeQueueFull)
	_, err = s.Run(t.Context(), sandbox.Command{Shell: "true"})
	wantCode(t, "a command", err, v1.CodeQueueFull)
	cancels[1]() // while the first cell runs: the cancelled cell leaves the queue at once
	wantCode(t, "the one that was cancelled", <-all[1], v1.CodeCancelled)
	late, cancel := add(3, 3)
	defer cancel()
	if err := s.Files().WriteAll(t.Context(), "/tmp/go", nil, sandbox.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, gone := range []chan error{all[0], all[2], late} {
		if err := <-gone; err != nil {
			t.Error(err)
		}
	}
	want(t, "order", py(t, s, "order"), "[0, 2, 3]")
}

func TestOutputIsLimited(t *testing.T) {
	k := newBench(t, quick())
	s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Settings: Settings{Policy: Policy{Output: 1000}}})
	if err != nil {
		t.Fatal(err)
	}
	py(t, s, "print('x' * 2000)")
	_, err = s.Cell(t.Context(), sandbox.Cell{Code: "1"})
	wantCode(t, "a cell", err, v1.CodeSessionLimit)
}

func TestVarsAndAuditLog(t *testing.T) {
	k := newBench(t, quick())
	ctx := WithActor(t.Context(), Actor{Name: "ann"})
	s, _, err := k.m.Open(ctx, Key{Name: "work"}, OpenOptions{Settings: Settings{Vars: map[string]string{"a": "1"}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetVar(ctx, "b", "2"); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "a bad name", s.SetVar(ctx, "", "2"), v1.CodeInvalidRequest)
	wantCode(t, "too long", s.SetVar(ctx, "c", strings.Repeat("x", MaxVarLength+1)), v1.CodeTooLarge)
	k.restart()
	s = k.get("work")
	vars, err := s.Vars(ctx)
	if err != nil || len(vars) != 2 || vars["a"] != "1" || vars["b"] != "2" {
		t.Errorf("vars %v, %v", vars, err)
	}
	if err := s.DeleteVar(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	_, err = s.Var(ctx, "a")
	wantCode(t, "a deleted one", err, v1.CodeVarNotFound)
	if _, err := s.Cell(ctx, sandbox.Cell{Code: "print('hi')"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Start(ctx, sandbox.Command{Shell: "while [ ! -e /tmp/stop ]; do sleep 0.05; done; echo over; exit 3"}); err != nil {
		t.Fatal(err)
	}
	k.restart() // the entry of its end has the actor of its start, although another manager writes it
	s = k.get("work")
	await(t, "the command is found", func() bool { return s.Info().Running == 1 })
	if _, err := s.Run(t.Context(), sandbox.Command{Shell: "touch /tmp/stop"}); err != nil {
		t.Fatal(err)
	}
	k.awaitState(s, v1.StateReady)
	await(t, "its end is noted", func() bool { return k.m.EndedOperations()[OperationEnd{actionBackground, v1.EndedExit}] == 1 })
	if _, err := s.Start(ctx, sandbox.Command{Args: []string{"true"}}); err != nil {
		t.Fatal(err)
	}
	await(t, "the end of another is noted", func() bool { return k.m.EndedOperations()[OperationEnd{actionBackground, v1.EndedExit}] == 2 })
	k.awaitState(s, v1.StateReady)
	if err := s.End(ctx, "done with it"); err != nil {
		t.Fatal(err)
	}
	_, err = s.Var(ctx, "b")
	wantCode(t, "a variable of an ended session", err, v1.CodeSessionEnded)
	var got []string
	for e, err := range k.m.Audit(ctx, AuditOptions{Tenant: DefaultTenant, Session: "work", Actor: "ann"}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e.Action)
		if e.Action == "cell" && (e.Stdout != 3 || e.Verdict != "exit status 0" || e.Detail != "print('hi')" || e.Op == "" || e.Digest == "" || e.Duration == 0) {
			t.Errorf("entry %+v", e)
		}
		if e.Action == actionBackground && e.Detail != "true" && (!strings.HasPrefix(e.Detail, "while [") || e.Verdict != "exit status 3" || e.Stdout != 5 || e.Op == "" || e.Digest == "") {
			t.Errorf("entry %+v", e)
		}
	}
	slices.Sort(got) // the end of a short command may be recorded before its start
	want(t, "actions", strings.Join(got, " "), "background background cell ended open start start")
}
