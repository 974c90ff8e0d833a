package session

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

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
			if v1.CodeOf(err) == v1.CodeVarNotFound {
				return nil
			}
			return err
		},
		"events": func() error {
			for _, err := range s.Events(t.Context(), EventsOptions{}) {
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
			t.Fatalf("a query of %s counted as use", name)
		}
	}
}

func TestLookingKeepsNoSessionAwake(t *testing.T) {
	k := newBench(t, quick())
	s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Settings: Settings{Policy: Policy{Idle: v1.Duration(300 * time.Millisecond)}}})
	if err != nil {
		t.Fatal(err)
	}
	used := s.Info().Used
	asleep := v1.StateHibernated
	if !sleeps(k.b) {
		asleep = v1.StateExpired
	}
	await(t, string(asleep)+" while somebody looks", func() bool {
		for range k.m.List(t.Context(), ListOptions{}) {
		}
		if _, err := s.Vars(t.Context()); err != nil && v1.CodeOf(err) != v1.CodeSessionExpired {
			t.Fatal(err)
		}
		return s.Info().State == asleep
	})
	if !s.Info().Used.Equal(used) {
		t.Error("a query counted as use")
	}
}

func TestWatchingKeepsNoSessionAwake(t *testing.T) {
	k := newBench(t, quick())
	// On a busy machine the session may end before the guest watches: then it gets more time.
	for idle := 300 * time.Millisecond; ; idle *= 3 {
		s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Settings: Settings{Policy: Policy{Idle: v1.Duration(idle), OnIdle: v1.IdleEnd}}})
		if err != nil {
			t.Fatal(err)
		}
		var used time.Time
		err = s.Files().Watch(t.Context(), "/tmp", sandbox.WatchOptions{}, func(e sandbox.FileEvent) error {
			if e.Op == "ready" {
				used = s.Info().Used
			}
			return nil
		})
		wantCode(t, "a watcher when the session has ended", err, v1.CodeSessionExpired)
		if used.IsZero() && idle < 10*time.Second {
			continue
		}
		if !s.Info().Used.Equal(used) {
			t.Error("watching counted as use after its beginning")
		}
		return
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
			heard <- s.Files().Watch(t.Context(), "/tmp", sandbox.WatchOptions{}, func(sandbox.FileEvent) error { listens <- struct{}{}; return nil })
		}()
		select {
		case <-listens:
		case err := <-heard:
			t.Fatal("it does not listen: ", err)
		}
		if err := leave(); err != nil {
			t.Fatal(err)
		}
		wantCode(t, "a watcher of a session that is "+name, <-heard, v1.CodeSessionMoved)
	}
}

func TestReadingHoldsASessionAndRenewsNothing(t *testing.T) {
	k := newBench(t, calm())
	s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Settings: Settings{Policy: Policy{Idle: v1.Duration(time.Minute), OnIdle: v1.IdleEnd}}})
	if err != nil {
		t.Fatal(err)
	}
	used := s.Info().Used
	late := used.Add(time.Hour)
	reading := writerFunc(func(p []byte) (int, error) {
		if s.due(late) != nil || !strings.Contains(s.Info().Reason, "transfer") {
			t.Errorf("a session in which a call reads: %+v", s.Info())
		}
		return len(p), nil
	})
	if _, err := s.PeekFiles().Read(t.Context(), "/etc/passwd", reading); err != nil {
		t.Fatal(err)
	}
	if !s.Info().Used.Equal(used) {
		t.Error("reading counted as use")
	}
	if s.due(late) == nil {
		t.Error("it is kept although no call reads it")
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
	want(t, "state", string(s.Info().State), string(v1.StateHibernated))
	if o, err := s.Operation(t.Context(), all[0].ID); err != nil || o.ID != all[0].ID {
		t.Errorf("the first: %+v, %v", o, err)
	}
	want(t, "state", string(s.Info().State), string(v1.StateReady))
	_, err = s.Operation(t.Context(), "nosuch")
	wantCode(t, "one that never was", err, v1.CodeNotFound)
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
		if g, err := s.Guest(t.Context()); err != nil || g.Home != v1.DefaultHome {
			t.Errorf("the inside: %+v, %v", g, err)
		}
	}
	looks(s)
	if err := s.Hibernate(t.Context()); err != nil {
		t.Fatal(err)
	}
	looks(s)
	want(t, "state", string(s.Info().State), string(v1.StateHibernated))
	k.restart()
	s = k.get("work")
	looks(s)
	want(t, "state after a restart", string(s.Info().State), string(v1.StateHibernated))
	want(t, "x + 1", py(t, s, "x + 1"), "42")
	if ops, err := s.Operations(t.Context()); err != nil || len(ops) != 3 {
		t.Errorf("awake: %+v, %v", ops, err)
	}
	if err := s.Cancel(t.Context(), id); err != nil {
		t.Fatal(err)
	}
}
