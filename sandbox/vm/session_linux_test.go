package vm

import (
	"log/slog"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/backend"
	"github.com/recluse-dev/recluse/session"
)

// TestSessionsSleepAndFork has what the session manager does with a backend beyond the feature suite.
func TestSessionsSleepAndFork(t *testing.T) {
	b := testBackend(t)
	o := session.Options{
		Backends: []sandbox.Backend{b}, Require: backend.Requirements{Order: []string{Name}}, DataDir: t.TempDir(),
		Logger: slog.New(slog.DiscardHandler), NoPool: true,
	}
	m, err := session.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	s, _, err := m.Open(t.Context(), session.Key{Name: "work"}, session.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	run := func(s *session.Session, code, want string) {
		t.Helper()
		v, err := s.Cell(t.Context(), sandbox.Cell{Code: code})
		if err != nil || !v.OK() || want != "" && v.Result.Text() != want {
			t.Fatalf("%s: %v, %v", code, v, err)
		}
	}
	run(s, "x = 41", "")
	if err := s.Hibernate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if i := s.Info(); i.State != v1.StateHibernated {
		t.Errorf("its state is %s", i.State)
	}
	if all, err := b.List(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("a sleeping session has machines: %+v, %v", all, err)
	}
	// Another manager, as after a restart, wakes it.
	if err := m.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	if m, err = session.New(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	if s, _, err = m.Open(t.Context(), session.Key{Name: "work"}, session.OpenOptions{}); err != nil {
		t.Fatal(err)
	}
	run(s, "x + 1", "42")
	forks, err := s.Fork(t.Context(), 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	run(forks[0], "x += 1; x", "42")
	run(s, "x", "41")
	for _, s := range []*session.Session{s, forks[0]} {
		if err := s.End(t.Context(), ""); err != nil {
			t.Error(err)
		}
	}
}
