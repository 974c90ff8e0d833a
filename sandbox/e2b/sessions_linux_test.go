package e2b

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/remoteguest"
	"github.com/recluse-dev/recluse/internal/remoteguest/remotetest"
	"github.com/recluse-dev/recluse/internal/spend"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
	"github.com/recluse-dev/recluse/session"
)

// sessions returns a session manager on a backend. The caller closes or detaches it.
func sessions(t *testing.T, b *Backend, dir string) *session.Manager {
	t.Helper()
	m, err := session.New(t.Context(), session.Options{
		Backends: []sandbox.Backend{b}, Require: backend.Requirements{Order: []string{Name}, SkipTrial: true}, DataDir: dir,
		Logger: slog.New(slog.DiscardHandler), NoPool: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// work opens the session "work" of a manager.
func work(t *testing.T, m *session.Manager) *session.Session {
	t.Helper()
	s, _, err := m.Open(t.Context(), session.Key{Name: "work"}, session.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// results runs a cell whose result must be want.
func results(t *testing.T, s *session.Session, code, want string) {
	t.Helper()
	v, err := s.Cell(t.Context(), sandbox.Cell{Code: code})
	if err != nil || !v.OK() || v.Result.Text() != want {
		t.Fatalf("%s: %v, %v, want %q", code, v, err, want)
	}
}

// using returns a backend that uses a service.
func using(t *testing.T, s *remotetest.Web, change func(*remoteguest.Options)) *Backend {
	t.Helper()
	return subject.Backend(t, s.Address(), change).(*Backend) //nolint:forcetypeassert // subject opens no other
}

// remoteSnapshots returns the number of snapshots at the service.
func remoteSnapshots(t *testing.T, s *remotetest.Web) int {
	t.Helper()
	all, err := s.Manager.Snapshots(context.WithoutCancel(t.Context()), session.Key{})
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestSessionsAtTheService hibernates, wakes, saves and forks a session, with a later program in between.
func TestSessionsAtTheService(t *testing.T) {
	testneed.All(t, "TestService has a snapshot; sessions are tested on other backends")
	s := newService(t)
	b := using(t, s, func(o *remoteguest.Options) { o.Price, o.SnapshotPrice = 3600, 1 })
	dir := t.TempDir()
	m := sessions(t, b, dir)
	ses := work(t, m)
	results(t, ses, "x = 41; x", "41")
	if c := ses.Info().Cost; c <= 0 || c > 3600 {
		t.Errorf("a cost of $%g", c)
	}
	if err := ses.Hibernate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if i := ses.Info(); i.State != v1.StateHibernated || i.Cost != 0 || len(s.Running(t)) > 0 || remoteSnapshots(t, s) != 1 {
		t.Errorf("%s, $%g, at the service: %q, %d snapshots", i.State, i.Cost, s.Running(t), remoteSnapshots(t, s))
	}
	if h := b.Health(t.Context()); !strings.Contains(h.Reason, "1 snapshots") {
		t.Errorf("%s", h.Reason)
	}
	if err := m.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	m = sessions(t, b, dir)
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	ses = work(t, m)
	results(t, ses, "x + 1", "42") // wakes it
	if _, err := ses.Save(t.Context(), "warm"); err != nil {
		t.Fatal(err)
	}
	results(t, ses, "x = 0; x", "0")
	forks, err := ses.Fork(t.Context(), 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range forks {
		results(t, f, "x += 7; x", "7")
	}
	saved, _, err := m.Open(t.Context(), session.Key{Name: "again"}, session.OpenOptions{Settings: session.Settings{From: "work@warm"}})
	if err != nil {
		t.Fatal(err)
	}
	results(t, saved, "x", "41")
	if n := len(s.Running(t)); n != 4 {
		t.Errorf("%d sandboxes, want 4", n)
	}
	for _, e := range append(forks, ses, saved) {
		if err := e.End(t.Context(), "the test is over"); err != nil {
			t.Error(err)
		}
	}
	if err := m.DeleteSnapshot(t.Context(), session.Key{Name: "work"}, "warm"); err != nil {
		t.Error(err)
	}
	if _, err := m.GC(t.Context()); err != nil {
		t.Error(err)
	}
	testneed.Await(t, "nothing is left at the service", func() bool { return len(s.Running(t)) == 0 && remoteSnapshots(t, s) == 0 })
	if h := b.Health(t.Context()); !strings.Contains(h.Reason, "0 sandboxes, $") {
		t.Errorf("%s", h.Reason)
	}
}

// TestSnapshotsWithoutARecordAreDeleted has a program that dies before it knows the answer of the service.
func TestSnapshotsWithoutARecordAreDeleted(t *testing.T) {
	testneed.All(t, "TestSessionsAtTheService has the deletion of snapshots")
	s := newService(t)
	b := using(t, s, nil)
	sb := remotetest.Open(t, b)
	inner := s.Server.Config.Handler
	s.Server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/snapshots") {
			inner.ServeHTTP(discarded{http.Header{}}, r)
			panic(http.ErrAbortHandler) // the caller gets no answer
		}
		inner.ServeHTTP(w, r)
	})
	if _, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{}); err == nil {
		t.Error("a snapshot without an answer")
	}
	if n := remoteSnapshots(t, s); n != 0 {
		t.Errorf("%d snapshots are left after the failure", n)
	}
	s.Server.Config.Handler = inner

	// Its record is lost.
	snap, err := sb.Snapshot(t.Context(), sandbox.SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(b.Dir(), "snapshots", snap.ID+".json")); err != nil {
		t.Fatal(err)
	}
	foreign, err := s.Manager.Get(t.Context(), session.Key{Name: s.Running(t)[0]})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := foreign.Save(t.Context(), "of-another-program"); err != nil {
		t.Fatal(err)
	}
	removed, err := b.Reclaim(t.Context())
	if err != nil || len(removed) != 1 || !strings.HasSuffix(removed[0].Name, snap.ID) || remoteSnapshots(t, s) != 1 {
		t.Errorf("%+v %v; %d are left", removed, err, remoteSnapshots(t, s))
	}
}

// discarded is an answer that nobody gets.
type discarded struct{ header http.Header }

// Header implements http.ResponseWriter.
func (d discarded) Header() http.Header { return d.header }

// Write implements http.ResponseWriter.
func (d discarded) Write(b []byte) (int, error) { return len(b), nil }

// WriteHeader implements http.ResponseWriter.
func (d discarded) WriteHeader(int) {}

// TestTheTimeoutMovesWhileASandboxIsUsed waits until the service-side end was moved twice.
func TestTheTimeoutMovesWhileASandboxIsUsed(t *testing.T) {
	testneed.All(t, "TestASandboxHasAnAge in internal/spend has the same limits")
	s := newService(t)
	b := using(t, s, func(o *remoteguest.Options) { o.Timeout = 6 * time.Second })
	sb := remotetest.Open(t, b)
	end := func() time.Time {
		i, err := s.Manager.Get(t.Context(), session.Key{Name: s.Running(t)[0]})
		if err != nil {
			t.Fatal(err)
		}
		return *i.Info().Expires
	}
	for first, moved := end(), 0; moved < 2; {
		testneed.Await(t, "a later end", func() bool { return end().After(first) })
		first, moved = end(), moved+1
	}
	if got := remotetest.Sh(t, sb, "echo alive"); got != "alive\n" {
		t.Errorf("%q", got)
	}
	// Without this program, nothing moves it any more.
	sb.Detach()
	testneed.Await(t, "the service-side timeout", func() bool { return len(s.Running(t)) == 0 || time.Now().After(end()) })
}

func TestASandboxEndsAtItsAge(t *testing.T) {
	testneed.All(t, "TestASandboxHasAnAge in internal/spend has the same limit")
	s := newService(t)
	b := using(t, s, func(o *remoteguest.Options) {
		o.Timeout, o.Limits = 6*time.Second, spend.Limits{Age: 3 * time.Second}
	})
	m := sessions(t, b, t.TempDir())
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	ses := work(t, m)
	testneed.Await(t, "the end at the age", func() bool { return len(s.Running(t)) == 0 })
	testneed.Await(t, "the session notices", func() bool { return ses.Info().State != v1.StateReady })
	if i := ses.Info(); !strings.Contains(i.Reason, "e2b.max_age") {
		t.Errorf("%s: %s", i.State, i.Reason)
	}
}
