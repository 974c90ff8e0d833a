package session

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// stuck is a real backend in which a test can make some requests stall until their ctx ends. The other requests ignore
// their deadline, because on a busy machine they may take longer than a manager of these tests waits.
type stuck struct {
	sandbox.Backend

	mu      sync.Mutex
	stalls  []string // guarded by mu; requests that stall
	waiting int      // guarded by mu; how many requests have stalled
}

// set sets which requests stall.
func (b *stuck) set(stalls ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stalls = stalls
}

func (b *stuck) wait(ctx context.Context, what string) error {
	b.mu.Lock()
	stalls := slices.Contains(b.stalls, what)
	if stalls {
		b.waiting++
	}
	b.mu.Unlock()
	if !stalls {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (b *stuck) List(ctx context.Context) ([]sandbox.Info, error) {
	if err := b.wait(ctx, "list"); err != nil {
		return nil, err
	}
	return b.Backend.List(context.WithoutCancel(ctx))
}

func (b *stuck) Snapshots(ctx context.Context) ([]*sandbox.Snapshot, error) {
	if err := b.wait(ctx, "snapshots"); err != nil {
		return nil, err
	}
	return b.Backend.Snapshots(context.WithoutCancel(ctx))
}

func (b *stuck) Stop(ctx context.Context, id string) error {
	if err := b.wait(ctx, "stop"); err != nil {
		return err
	}
	return b.Backend.Stop(context.WithoutCancel(ctx), id)
}

func (b *stuck) DeleteSnapshot(ctx context.Context, id string) error {
	if err := b.wait(ctx, "delete"); err != nil {
		return err
	}
	return b.Backend.DeleteSnapshot(context.WithoutCancel(ctx), id)
}

// lines is a log that can be read while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// newStuckBench returns a bench whose manager waits only a moment for its backend.
func newStuckBench(t *testing.T) (*bench, *stuck, *lines) {
	t.Helper()
	o := quick()
	o.searchWait, o.stopWait = 100*time.Millisecond, 100*time.Millisecond
	k := newBench(t, o)
	b, log := &stuck{Backend: k.b}, &lines{}
	if err := k.m.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.b, k.opts.Backends, k.opts.Logger = b, []sandbox.Backend{b}, slog.New(slog.NewJSONHandler(log, nil))
	k.start()
	return k, b, log
}

// soon fails the test if f does not return.
func soon(t *testing.T, what string, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(20 * time.Second):
		t.Fatalf("%s waits for a backend that stalls", what)
		return nil
	}
}

func TestACollectionDoesNotWaitForABackendThatStalls(t *testing.T) {
	k, b, _ := newStuckBench(t)
	for _, what := range []string{"list", "snapshots"} {
		b.set(what)
		err := soon(t, "a collection", func() error { _, err := k.m.GC(t.Context()); return err })
		e, ok := errors.AsType[*v1.Error](err)
		if !ok || e.Code != v1.CodeBackendMissing || !e.Retry || e.Remedy == "" || !strings.Contains(e.Message, b.Name()) {
			t.Errorf("%s stalls: %v", what, err)
		}
	}
	b.set("list")
	given, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := k.m.GC(given); v1.CodeOf(err) == v1.CodeBackendMissing {
		t.Errorf("a cancelled caller gets the error of a backend that does not answer: %v", err)
	}
	b.set()
	if _, err := k.m.GC(t.Context()); err != nil {
		t.Errorf("once it answers: %v", err)
	}
}

func TestAManagerStartsThoughItsBackendStalls(t *testing.T) {
	k, b, log := newStuckBench(t)
	s := k.open("work")
	py(t, s, "x = 41")
	id := s.Info().Sandbox
	for _, what := range []string{"list", "snapshots"} {
		if err := k.m.Detach(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.set(what)
		err := soon(t, "a start", func() (err error) { k.m, err = New(t.Context(), k.opts); return err })
		b.set()
		if err != nil {
			t.Fatal(err)
		}
		choose(k.m)
		s = k.get("work")
		want(t, "x + 1, when "+what+" had stalled", py(t, s, "x + 1"), "42")
		want(t, "sandbox", s.Info().Sandbox, id)
	}
	for _, line := range []string{"backend could not list its sandboxes", "backend could not list its snapshots", "did not answer"} {
		if !strings.Contains(log.String(), line) {
			t.Errorf("the log lacks %q: %s", line, log)
		}
	}
}

func TestAStrayThatCannotBeEndedIsToldAndEndedLater(t *testing.T) {
	k, b, log := newStuckBench(t)
	b.set("stop")
	spec := sandbox.Spec{Persist: true, Labels: map[string]string{labelInstance: k.m.instance, labelMaker: "an earlier one"}}
	sb, err := sandbox.Open(t.Context(), b, spec)
	if err != nil {
		t.Fatal(err)
	}
	sb.Detach()
	err = soon(t, "a collection", func() error { _, err := k.m.GC(t.Context()); return err })
	wantCode(t, "a collection", err, v1.CodeBackendMissing)
	if !strings.Contains(log.String(), "stray sandbox could not be ended") {
		t.Errorf("nothing was reported: %s", log)
	}
	b.set()
	if _, err := k.m.GC(t.Context()); err != nil {
		t.Error(err)
	}
	await(t, "it is ended", func() bool { return k.sandboxes() == 0 }) // by us, or by the look that a new manager takes
}

func TestABackendThatStallsIsAskedForTheRemovalOfOneImage(t *testing.T) {
	k, b, _ := newStuckBench(t)
	labels := map[string]string{"test": "left over"} // not as a manager's, which looks for them by itself
	collect := func() (Collected, error) {
		var c Collected
		err := k.m.collectImages(t.Context(), &c, func(l map[string]string, _ time.Time) bool { return l["test"] != "" })
		return c, err
	}
	sb, err := sandbox.Open(t.Context(), b, sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{Labels: labels}); err != nil {
			t.Fatal(err)
		}
	}
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	b.set("delete")
	c, err := collect()
	wantCode(t, "a collection", err, v1.CodeBackendMissing)
	b.mu.Lock()
	if c.Snapshots != 0 || b.waiting != 1 {
		t.Errorf("%d images were collected, and %d requests stalled", c.Snapshots, b.waiting)
	}
	b.mu.Unlock()
	b.set()
	c, err = collect()
	if err != nil || c.Snapshots != 3 {
		t.Errorf("%d images were collected once it answers: %v", c.Snapshots, err)
	}
}
