package docker

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// through starts a proxy between a backend and the Docker engine of the tests. It calls removal for every request that
// removes a container; removal may answer the request itself.
func through(t *testing.T, removal func(http.ResponseWriter, *http.Request) (answered bool)) func(*Options) {
	t.Helper()
	engine := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", "engine" },
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(engineHost, "unix://"))
		}},
		FlushInterval: -1, // events are forwarded at once
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	p := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodDelete || !strings.Contains(r.URL.Path, "/containers/") || !removal(w, r) {
			engine.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(p.Close)
	return func(o *Options) { o.Host = "tcp://" + p.Listener.Addr().String() }
}

// together blocks requests until n of them are concurrent. If they come one after the other, the test fails.
func together(t *testing.T, n int) func(http.ResponseWriter, *http.Request) bool {
	var here atomic.Int64
	all := make(chan struct{})
	return func(http.ResponseWriter, *http.Request) bool {
		if here.Add(1) == int64(n) {
			close(all)
		}
		select {
		case <-all:
		case <-time.After(20 * time.Second):
			t.Errorf("of %d removals, %d were concurrent", n, here.Load())
		}
		return false
	}
}

// orphans makes sandboxes whose owner counts as dead.
func orphans(t *testing.T, b *Backend, n int) (ids []string) {
	t.Helper()
	dead := backendkit.Self()
	dead.PID, dead.Start = 1<<22-1, 1 // no process has this PID
	for range n {
		sb := open(t, b, sandbox.Spec{})
		sb.Detach()
		if err := b.notes.Write(sb.ID(), backendkit.Note{Owner: dead}); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, sb.ID())
	}
	return ids
}

func TestWhatDeadProgramsLeftIsEndedAtOnce(t *testing.T) {
	b := newBackend(t, nil)
	ids := orphans(t, b, 3)
	pass := through(t, together(t, len(ids)))
	next := newBackend(t, func(o *Options) { o.Dir, o.Instance = b.dir, b.instance; pass(o) })
	if err := next.sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if left := leftovers(t, ids); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestWhatCannotBeEndedIsToldAndTriedAgain(t *testing.T) {
	b := newBackend(t, nil)
	ids := orphans(t, b, 2)
	var stuck atomic.Bool
	stuck.Store(true)
	pass := through(t, func(w http.ResponseWriter, r *http.Request) bool {
		if stuck.Load() {
			http.Error(w, `{"message": "device or resource busy"}`, http.StatusInternalServerError)
		}
		return stuck.Load()
	})
	next := newBackend(t, func(o *Options) { o.Dir, o.Instance = b.dir, b.instance; pass(o) })
	next.sweeper.Once(t.Context())
	err := next.sweeper.Err()
	if err == nil || strings.Count(err.Error(), "resource busy") != len(ids) {
		t.Fatalf("error for %d sandboxes that could not be ended: %v", len(ids), err)
	}
	next.proofs.Renew() // so that Health makes no trial sandbox
	if h := next.Health(t.Context()); !h.OK || !strings.Contains(h.Reason, "resource busy") {
		t.Errorf("%+v", h)
	}
	stuck.Store(false)
	next.sweeper.Once(t.Context())
	if left := leftovers(t, ids); len(left) != len(ids) {
		t.Errorf("the sweep was repeated at once; left behind: %q", left)
	}
	next.sweeper.RetryAfter = time.Nanosecond
	next.sweeper.Once(t.Context())
	testneed.Await(t, "nothing is left behind, and nothing told", func() bool { return len(leftovers(t, ids)) == 0 && next.sweeper.Err() == nil })
}

func TestSessionsAreReleasedAtOnce(t *testing.T) {
	names := []string{"a", "b", "c"}
	wait := together(t, len(names))
	var armed atomic.Bool // carriers are removed before
	b := newBackend(t, through(t, func(w http.ResponseWriter, r *http.Request) bool { return armed.Load() && wait(w, r) }))
	m := manager(t, b, session.Options{NoPool: true})
	for _, name := range names {
		if _, _, err := m.Open(t.Context(), session.Key{Name: name}, session.OpenOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	armed.Store(true)
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if all, err := b.List(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("left behind: %+v, %v", all, err)
	}
}
