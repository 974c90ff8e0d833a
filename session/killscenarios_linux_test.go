package session

import (
	"context"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// scenario is a change to a session. The process is not killed during prepare, and at any point of act.
type scenario struct {
	pool    bool
	sleeps  bool // needs a backend whose sessions can be hibernated or forked
	points  []string
	ahead   string // a failpoint at which only the first goroutine continues; empty: all continue
	prepare func(ctx context.Context, m *Manager) error
	act     func(ctx context.Context, m *Manager) error
	check   func(t *testing.T, k *bench)
}

// prepared makes session "work" with x = 1.
func prepared(ctx context.Context, m *Manager) error {
	s, _, err := m.Open(ctx, Key{Name: "work"}, OpenOptions{})
	if err != nil {
		return err
	}
	_, err = s.Cell(ctx, sandbox.Cell{Code: note(1)})
	return err
}

// with calls f with the session "work".
func with(f func(ctx context.Context, s *Session) error) func(context.Context, *Manager) error {
	return func(ctx context.Context, m *Manager) error {
		s, err := m.Get(ctx, Key{Name: "work"})
		if err != nil {
			return err
		}
		return f(ctx, s)
	}
}

func then(fs ...func(context.Context, *Manager) error) func(context.Context, *Manager) error {
	return func(ctx context.Context, m *Manager) error {
		for _, f := range fs {
			if err := f(ctx, m); err != nil {
				return err
			}
		}
		return nil
	}
}

var (
	saveOne = with(func(ctx context.Context, s *Session) error { _, err := s.Save(ctx, "one"); return err })
	setTwo  = with(func(ctx context.Context, s *Session) error {
		_, err := s.Cell(ctx, sandbox.Cell{Code: note(2)})
		return err
	})
	doze    = with(func(ctx context.Context, s *Session) error { return s.Hibernate(ctx) })
	forkTwo = with(func(ctx context.Context, s *Session) error { _, err := s.Fork(ctx, 2, nil); return err })
	touch   = with(func(ctx context.Context, s *Session) error {
		_, err := s.Cell(ctx, sandbox.Cell{Code: "x"})
		return err
	})
)

// checkAlive checks that "work" exists with x = 1.
func checkAlive(t *testing.T, k *bench) {
	t.Helper()
	want(t, "x", py(t, k.get("work"), noted(k.b)), "1")
}

// checkOldOrNew checks that there is no session, or a session that works.
func checkOldOrNew(t *testing.T, k *bench) {
	t.Helper()
	s, err := k.m.Get(t.Context(), Key{Name: "work"})
	if err != nil {
		wantCode(t, "no session", err, v1.CodeSessionNotFound)
		return
	}
	py(t, s, "1")
}

// checkSnapshots checks that each named snapshot has an image and can be restored, and that there are no other images.
func checkSnapshots(t *testing.T, k *bench) {
	t.Helper()
	all, err := k.m.Snapshots(t.Context(), Key{})
	if err != nil {
		t.Fatal(err)
	}
	await(t, "images are those of the named snapshots", func() bool { k.collect(); return k.images() == len(all) })
	for _, s := range all {
		n, _, err := k.m.Open(t.Context(), Key{Name: "from-" + s.Name}, OpenOptions{Settings: Settings{From: s.Session + "@" + s.Name}})
		if err != nil {
			t.Fatal(err)
		}
		want(t, "x in the snapshot", py(t, n, noted(k.b)), "1")
	}
}

// checkGoesBack checks that the session is based on its snapshot, if the snapshot was named: it is the parent of the
// next snapshot.
func checkGoesBack(t *testing.T, k *bench) {
	t.Helper()
	all, err := k.m.Snapshots(t.Context(), Key{Name: "work"})
	if err != nil {
		t.Fatal(err)
	}
	parent := ""
	for _, s := range all {
		parent = s.Name
	}
	if next := save(t, k.get("work"), "next"); next.Parent != parent {
		t.Errorf("the parent of the next snapshot is %q, want %q", next.Parent, parent)
	}
}

// checkForks checks that there are both copies or none.
func checkForks(t *testing.T, k *bench) {
	t.Helper()
	copies := 0
	for i := range k.m.List(t.Context(), ListOptions{}) {
		want(t, "x in "+i.Key.Name, py(t, k.get(i.Key.Name), "x"), "1")
		if i.Key.Name != "work" {
			copies++
		}
	}
	if copies != 0 && copies != 2 {
		t.Errorf("there are %d of 2 copies", copies)
	}
}

func checkEach(checks ...func(*testing.T, *bench)) func(*testing.T, *bench) {
	return func(t *testing.T, k *bench) {
		for _, c := range checks {
			c(t, k)
		}
	}
}

// resumeJournal resumes the journal that the audit scenario has paused.
var resumeJournal func()

var scenarios = map[string]scenario{
	"create": {
		points: []string{"create.begun", "create.registered", "create.made", "create.saved"},
		act:    prepared, check: checkOldOrNew,
	},
	"create from pool": {
		pool: true, points: []string{"create.registered", "create.taken", "create.made"},
		act: prepared, check: checkOldOrNew,
	},
	"snapshot": {
		points:  []string{"snapshot.written", "snapshot.named"},
		prepare: prepared, act: saveOne, check: checkEach(checkAlive, checkSnapshots, checkGoesBack),
	},
	"snapshot of a sleeper": {
		sleeps: true, points: []string{"snapshot.written", "snapshot.named"},
		prepare: then(prepared, doze), act: saveOne, check: checkEach(checkAlive, checkSnapshots, checkGoesBack),
	},
	"hibernate": {
		sleeps: true, points: []string{"hibernate.begun", "hibernate.stopped", "hibernate.saved"},
		prepare: prepared, act: doze, check: checkEach(checkAlive, checkSnapshots),
	},
	"wake": {
		sleeps: true, points: []string{"wake.made", "wake.saved"},
		prepare: then(prepared, doze), act: touch, check: checkEach(checkAlive, checkSnapshots),
	},
	"restore": {
		points:  []string{"restore.made", "restore.saved", "restore.stopped"},
		prepare: then(prepared, saveOne, setTwo),
		act:     with(func(ctx context.Context, s *Session) error { return s.Restore(ctx, "one") }),
		check: checkEach(func(t *testing.T, k *bench) {
			if got := py(t, k.get("work"), noted(k.b)); got != "1" && got != "2" {
				t.Errorf("x is %s", got)
			}
		}, checkSnapshots),
	},
	"restore a sleeper": {
		sleeps: true, points: []string{"restore.made", "restore.saved"},
		prepare: then(prepared, saveOne, setTwo, doze),
		act:     with(func(ctx context.Context, s *Session) error { return s.Restore(ctx, "one") }),
		check: checkEach(func(t *testing.T, k *bench) {
			if got := py(t, k.get("work"), noted(k.b)); got != "1" && got != "2" {
				t.Errorf("x is %s", got)
			}
		}, checkSnapshots),
	},
	"delete a snapshot": {
		points:  []string{"delete.forgotten"},
		prepare: then(prepared, saveOne),
		act: func(ctx context.Context, m *Manager) error {
			return m.DeleteSnapshot(ctx, Key{Name: "work"}, "one")
		},
		check: checkEach(checkAlive, checkSnapshots),
	},
	"fork": {
		sleeps: true, points: []string{"fork.written", "create.begun", "create.registered", "create.made", "fork.made", "create.saved"},
		prepare: prepared, act: forkTwo, check: checkEach(checkAlive, checkForks, checkSnapshots),
	},
	"fork of which one copy is ahead": {
		sleeps: true, points: []string{"create.registered", "create.made"}, ahead: "create.begun",
		prepare: prepared, act: forkTwo, check: checkEach(checkAlive, checkForks, checkSnapshots),
	},
	"end": {
		points:  []string{"end.begun", "end.saved", "end.terminated", "end.stopped"},
		prepare: prepared,
		act: with(func(ctx context.Context, s *Session) error {
			err := s.End(ctx, "")
			<-s.disposed
			return err
		}),
		check: checkOldOrNew,
	},
	"audit": {
		points: []string{"answered", "audit.written"},
		// The journal also writes at regular times. It is paused until the caller has the result, so that the kill does
		// not come earlier.
		prepare: then(prepared, func(_ context.Context, m *Manager) error { resumeJournal = m.journal.Pause(); return nil }),
		act: then(touch, func(ctx context.Context, m *Manager) error {
			failpoint("answered")
			resumeJournal()
			return m.journal.Flush(ctx)
		}),
		check: func(t *testing.T, k *bench) {
			k.restart() // must not add entries again
			var got []string
			for e, err := range k.m.Audit(t.Context(), AuditOptions{}) {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, e.Action+" "+e.Detail)
			}
			if want := "cell " + note(1) + ",cell x"; len(got) != 3 || !strings.HasPrefix(got[0], "open ") || strings.Join(got[1:], ",") != want {
				t.Errorf("the audit log has %q", got)
			}
		},
	},
	"network": {
		sleeps: true, points: []string{"network.saved", "network.set"},
		prepare: prepared,
		act: with(func(ctx context.Context, s *Session) error {
			_, err := s.SetNetwork(ctx, v1.SessionNetwork{Network: v1.Network{Rules: []v1.NetworkRule{"allow a.test:*"}}})
			return err
		}),
		check: checkEach(checkAlive, func(t *testing.T, k *bench) {
			port := greet(t)
			s := k.get("work")
			py(t, s, getPage)
			want(t, "a page with the policy of the killed manager", page(t, s, "a.test:"+port), "hello")
			want(t, "another page", page(t, s, "b.test:"+port), "ConnectionResetError")
		}),
	},
	"restore what was lost": {
		points:  []string{"revive.made"},
		prepare: then(prepared, saveOne, setTwo),
		act: with(func(ctx context.Context, s *Session) error {
			i := s.Info()
			pid, err := process(ctx, s.m.known(i.Backend), i.Sandbox)
			if err != nil {
				return err
			}
			_ = syscall.Kill(pid, syscall.SIGKILL) // the test waits for the effect
			<-ctx.Done()
			return ctx.Err()
		}),
		check: checkEach(checkAlive, checkSnapshots),
	},
}
