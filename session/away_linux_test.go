package session

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// distant is a real backend that a test can make unreachable.
type distant struct {
	sandbox.Backend
	over chan struct{} // closed at the end of the test

	mu       sync.Mutex
	away     error             // guarded by mu; the error of all requests
	mute     error             // guarded by mu; the error of requests for snapshots
	stalled  chan struct{}     // guarded by mu; requests wait until it is closed; nil: they do not wait
	kept     map[string]int    // guarded by mu; number of requests that have waited, by kind
	bounded  int               // guarded by mu; lists that were requested with a deadline while the backend was away
	attached []*distantMachine // guarded by mu
}

// there returns the error of a request, or blocks the request while the backend is stalled.
func (d *distant) there(ctx context.Context, what string) error {
	d.mu.Lock()
	stalled, away := d.stalled, d.away
	if stalled != nil {
		d.kept[what]++
	}
	if _, bounded := ctx.Deadline(); bounded && away != nil && what == "list" {
		d.bounded++
	}
	d.mu.Unlock()
	if stalled == nil {
		return away
	}
	select {
	case <-stalled:
		return nil
	case <-ctx.Done():
		return &v1.Error{Code: v1.CodeCancelled, Op: what, Message: "given up", Err: ctx.Err()}
	}
}

// say sets the error of all requests; nil: the backend is back. If cut is set, it breaks the attachments.
func (d *distant) say(away error, cut bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.away = away
	if !cut {
		return
	}
	for _, m := range d.attached {
		m.end(away)
	}
	d.attached = nil
}

// deafen breaks the connection to a session's sandbox, which must be the only one, and returns the sandbox. The end of
// the sandbox is then not reported.
func (d *distant) deafen(s *Session) *sandbox.Sandbox {
	d.mu.Lock()
	m := d.attached[len(d.attached)-1]
	d.mu.Unlock()
	m.mu.Lock()
	m.over = true
	m.mu.Unlock()
	_ = m.Machine.Stream().Close() // the test needs a sandbox that does not answer
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attachment.sandbox
}

func (d *distant) wrap(m sandbox.Machine, err error) (sandbox.Machine, error) {
	if err != nil {
		return nil, err
	}
	w := &distantMachine{Machine: m, gone: make(chan struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.attached = append(d.attached, w)
	go func() {
		select {
		case <-m.Gone():
			w.end(m.Cause())
		case <-w.gone:
		case <-d.over: // the end of a container is only reported to an attached program
		}
	}()
	return w, nil
}

func (d *distant) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Machine, error) {
	if err := d.there(ctx, "start"); err != nil {
		return nil, err
	}
	return d.wrap(d.Backend.Start(ctx, spec))
}

func (d *distant) Attach(ctx context.Context, id string) (sandbox.Machine, error) {
	if err := d.there(ctx, "attach"); err != nil {
		return nil, err
	}
	return d.wrap(d.Backend.Attach(ctx, id))
}

func (d *distant) Restore(ctx context.Context, snap *sandbox.Snapshot, o sandbox.RestoreOptions) (sandbox.Machine, error) {
	if err := d.there(ctx, "restore"); err != nil {
		return nil, err
	}
	return d.wrap(d.Backend.Restore(ctx, snap, o))
}

func (d *distant) List(ctx context.Context) ([]sandbox.Info, error) {
	if err := d.there(ctx, "list"); err != nil {
		return nil, err
	}
	return d.Backend.List(ctx)
}

func (d *distant) Snapshots(ctx context.Context) ([]*sandbox.Snapshot, error) {
	d.mu.Lock()
	mute := d.mute
	d.mu.Unlock()
	if mute != nil {
		return nil, mute
	}
	return d.Backend.Snapshots(ctx)
}

// distantMachine is a sandbox whose backend can become unreachable.
type distantMachine struct {
	sandbox.Machine
	gone chan struct{}

	mu    sync.Mutex
	over  bool  // guarded by mu
	cause error // guarded by mu
}

func (m *distantMachine) Gone() <-chan struct{} { return m.gone }

func (m *distantMachine) Cause() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cause
}

func (m *distantMachine) end(cause error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return
	}
	m.over, m.cause = true, cause
	close(m.gone)
	_ = m.Machine.Stream().Close() // of a sandbox that is gone or unreachable
}

// newDistantBench returns a bench whose backend can become unreachable.
func newDistantBench(t *testing.T) (*bench, *distant) {
	t.Helper()
	return newDistantBenchWith(t, quick())
}

func newDistantBenchWith(t *testing.T, o Options) (*bench, *distant) {
	t.Helper()
	testneed.Parallel(t)
	d := &distant{Backend: realBackend(t), over: make(chan struct{})}
	k := &bench{t: t, dir: t.TempDir(), b: d, opts: o}
	k.opts.Backends, k.opts.DataDir, k.opts.Require.AllowContainer = []sandbox.Backend{d}, k.dir, true
	if os.Getenv("RECLUSE_TEST_LOG") == "" {
		k.opts.Logger = slog.New(slog.DiscardHandler)
	}
	k.start()
	t.Cleanup(func() { close(d.over) })
	t.Cleanup(k.close)
	t.Cleanup(func() { d.say(nil, false) })
	return k, d
}

func TestASandboxOutlivesABackendThatIsAwayForAWhile(t *testing.T) {
	for _, c := range []struct {
		name string
		code v1.Code
	}{
		{"the engine went away", "engine_lost"},
		{"somebody paused the container", "sandbox_paused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			k, d := newDistantBench(t)
			s := k.open("work")
			py(t, s, "x = 41")
			id := s.Info().Sandbox
			d.say(&v1.Error{Code: c.code, Message: c.name, Retry: true}, true)
			_, err := s.Cell(t.Context(), sandbox.Cell{Code: "x"})
			wantCode(t, "a cell meanwhile", err, c.code)
			want(t, "state", string(s.Info().State), string(v1.StateReady))
			d.say(nil, false)
			want(t, "x + 1", py(t, s, "x + 1"), "42")
			want(t, "sandbox", s.Info().Sandbox, id)
		})
	}
}

func TestASandboxThatDoesNotAnswerIsKeptWhileItsBackendIsAway(t *testing.T) {
	k, d := newDistantBench(t)
	s := k.open("work")
	py(t, s, "x = 41")
	d.say(&v1.Error{Code: v1.CodeBackendMissing, Message: "the engine does not answer", Retry: true}, false)
	s.checkConnection(d.deafen(s))
	want(t, "state", string(s.Info().State), string(v1.StateReady))
	_, err := s.Cell(t.Context(), sandbox.Cell{Code: "x"})
	wantCode(t, "a cell meanwhile", err, v1.CodeBackendMissing)
	d.say(nil, false)
	want(t, "x + 1", py(t, s, "x + 1"), "42")
}

func TestABackendThatIsAwayCostsNoAttemptToRestore(t *testing.T) {
	k, d := newDistantBench(t)
	s := k.open("work")
	py(t, s, note(41))
	save(t, s, "one")
	id := s.Info().Sandbox
	d.say(&v1.Error{Code: v1.CodeBackendMissing, Message: "the engine does not answer", Retry: true}, false)
	if err := d.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	for _, m := range d.attached {
		m.end(&v1.Error{Code: v1.CodeSandboxLost, Message: "it was removed"})
	}
	d.mu.Unlock()
	await(t, "callers are told", func() bool {
		_, err := s.Cell(t.Context(), sandbox.Cell{Code: "x"})
		return v1.CodeOf(err) == v1.CodeBackendMissing
	})
	asked := func() int {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.bounded
	}
	before := asked()
	s.mu.Lock()
	n := len(s.rec.Losses)
	s.mu.Unlock()
	if n != 0 {
		t.Errorf("%d attempts were counted", n)
	}
	await(t, "it is asked whether it is back, though not for ever", func() bool { return asked() > before })
	d.say(nil, false)
	await(t, "it is restored", func() bool { return s.Info().Restored == 1 })
	want(t, "x", py(t, s, noted(k.b)), "41")
	if err := k.m.DeleteSnapshot(t.Context(), Key{Name: "work"}, "*"); err != nil {
		t.Fatal(err)
	}
}

// part makes the backend unreachable and waits until the session has detached its sandbox.
func (k *bench) part(s *Session, d *distant) {
	k.t.Helper()
	d.say(&v1.Error{Code: "engine_lost", Message: "the engine no longer answers", Retry: true}, true)
	await(k.t, "the sandbox is detached", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.attachment.sandbox == nil
	})
}

func TestALostSessionThatWasToSleepStillExpires(t *testing.T) {
	k, d := newDistantBench(t)
	s := k.open("work")
	id := s.Info().Sandbox
	k.part(s, d)
	if err := d.Stop(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	d.say(nil, false)
	if sleeps(k.b) {
		wantCode(t, "hibernate", s.Hibernate(t.Context()), v1.CodeSessionLost)
	} else {
		_, err := s.Cell(t.Context(), sandbox.Cell{Code: "1"})
		wantCode(t, "a cell", err, v1.CodeSessionLost)
	}
	await(t, "given up", func() bool { return strings.Contains(s.Info().Reason, "no snapshot") })
	s.mu.Lock()
	s.rec.Expires = time.Now()
	s.mu.Unlock()
	k.awaitState(s, v1.StateExpired)
}

func TestASessionEndsOnceItsBackendAnswers(t *testing.T) {
	k, d := newDistantBench(t)
	s := k.open("work")
	id := s.Info().Sandbox
	py(t, s, "x = 41")
	s.mu.Lock()
	s.setState(v1.StatePaused, "by hand")
	s.mu.Unlock()
	d.say(&v1.Error{Code: v1.CodeBackendMissing, Message: "the engine does not answer", Retry: true}, false)
	for range 2 {
		wantCode(t, "end", s.End(WithActor(t.Context(), Actor{Name: "ann"}), "enough"), v1.CodeBackendMissing)
		want(t, "state", string(s.Info().State), string(v1.StateEnding))
	}
	_, err := s.Cell(t.Context(), sandbox.Cell{Code: "x"})
	wantCode(t, "a cell meanwhile", err, v1.CodeSessionEnded)
	_, _, err = k.m.Open(t.Context(), s.key, OpenOptions{})
	wantCode(t, "another of its name", err, v1.CodeSessionEnded)
	wantCode(t, "a restore", s.reserve(), v1.CodeSessionEnded)
	_, err = s.Extend(t.Context(), time.Hour)
	wantCode(t, "an extension", err, v1.CodeSessionEnded)
	k.restart()
	s = k.get("work")
	want(t, "state after a restart", string(s.Info().State), string(v1.StateEnding))
	want(t, "state before", string(s.rec.EndingFrom), string(v1.StatePaused))
	d.say(nil, false)
	k.awaitState(s, v1.StateEnded)
	want(t, "reason", s.Info().Reason, "enough")
	await(t, "the audit log tells who has ended it", func() bool {
		var said []string
		for e, err := range k.m.Audit(t.Context(), AuditOptions{Session: "work"}) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Detail == "enough" {
				said = append(said, e.Action+" "+e.Actor)
			}
		}
		return slices.Equal(said, []string{"ending ann", "ending ann", "ended "})
	})
	await(t, "its sandbox has gone", func() bool {
		left, err := k.b.List(t.Context())
		return err == nil && !slices.ContainsFunc(left, func(i sandbox.Info) bool { return i.ID == id })
	})
	k.open("work")
}

func TestASessionOfASilentBackend(t *testing.T) {
	k, _ := newDistantBench(t)
	name := k.b.Name()
	for _, c := range []struct {
		name     string
		backend  string
		record   record
		kept     bool
		reviving bool
	}{
		{"was being made", name, record{State: v1.StateCreating}, false, false},
		{"was being made elsewhere", "elsewhere", record{State: v1.StateCreating}, false, false},
		{"ran", name, record{State: v1.StateReady, Sandbox: "x"}, true, false},
		{"ran elsewhere", "elsewhere", record{State: v1.StateReady, Sandbox: "x"}, true, false},
		{"was being restored", name, record{State: v1.StateLost}, true, true},
		{"was being restored elsewhere", "elsewhere", record{State: v1.StateLost}, true, false},
		{"was given up", name, record{State: v1.StateLost, LostForGood: true}, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.record.Backend = c.backend
			s := k.m.newSession(c.record)
			kept := s.reconcile(&inventory{unanswered: map[string]bool{name: true}}, nil)
			if restoring := s.attachment.isRestoring(); kept != c.kept || restoring != c.reviving || s.rec.State != c.record.State {
				t.Errorf("kept %t, restored %t, %s", kept, restoring, s.rec.State)
			}
		})
	}
}

func TestASleeperIsFoundOnceItsBackendTellsItsSnapshots(t *testing.T) {
	k, d := newDistantBench(t)
	s := k.open("work")
	py(t, s, "x = 41")
	id := s.Info().Sandbox
	if err := s.Hibernate(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock() // as if the manager had been killed before it wrote to the store
	s.rec.State, s.rec.Sandbox, s.rec.Hibernation, s.rec.HibernatedAt, s.dirty = v1.StateReady, id, nil, time.Time{}, true
	s.mu.Unlock()
	hush := func(err error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.mute = err
	}
	hush(&v1.Error{Code: v1.CodeBackendMissing, Message: "its disk does not answer", Retry: true})
	k.restart()
	s = k.get("work")
	_, err := s.Cell(t.Context(), sandbox.Cell{Code: "x"})
	wantCode(t, "a cell meanwhile", err, v1.CodeBackendMissing)
	if err := s.acquireTurn(t.Context()); err != nil { // so that no other goroutine attaches it
		t.Fatal(err)
	}
	hush(nil)
	c, err := k.m.GC(t.Context()) // GC does not know either whether the session is hibernated
	s.releaseTurn()
	if err != nil || c.Snapshots != 0 {
		t.Errorf("%+v, %v", c, err)
	}
	want(t, "x + 1", py(t, s, "x + 1"), "42")
}

// elsewhere is a backend without the sandboxes of the other one.
type elsewhere struct{ sandbox.Backend }

func (elsewhere) Name() string                                           { return "elsewhere" }
func (elsewhere) List(context.Context) ([]sandbox.Info, error)           { return nil, nil }
func (elsewhere) Snapshots(context.Context) ([]*sandbox.Snapshot, error) { return nil, nil }

func TestASessionOutlivesAManagerWithoutItsBackend(t *testing.T) {
	k, d := newDistantBench(t)
	py(t, k.open("work"), "x = 41")
	k.opts.Backends = []sandbox.Backend{elsewhere{d}}
	k.restart()
	s := k.get("work")
	_, err := s.Cell(t.Context(), sandbox.Cell{Code: "x"})
	wantCode(t, "a cell meanwhile", err, v1.CodeBackendUnknown)
	want(t, "state", string(s.Info().State), string(v1.StateReady))
	k.opts.Backends = []sandbox.Backend{d}
	k.restart()
	want(t, "x + 1", py(t, k.get("work"), "x + 1"), "42")
}
