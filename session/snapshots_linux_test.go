package session

import (
	"fmt"
	"sync/atomic"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func save(t *testing.T, s *Session, name string) Snapshot {
	t.Helper()
	snap, err := s.Save(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

func TestSnapshotsAreRestoredIntoTheSameSessionOrANewOne(t *testing.T) {
	k := newBench(t, quick())
	s := k.open("work")
	py(t, s, note(1))
	first := save(t, s, "one")
	if first.Size == 0 || first.Memory != sleeps(k.b) || first.Parent != "" || first.Session != "work" {
		t.Errorf("snapshot %+v", first)
	}
	py(t, s, note(2))
	want(t, "parent of the second", save(t, s, "two").Parent, "one")
	py(t, s, note(3))
	if err := s.Restore(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	want(t, "x", py(t, s, noted(k.b)), "1")
	want(t, "parent after a restore", save(t, s, "three").Parent, "one")
	if n := k.sandboxes(); n != 1 {
		t.Errorf("%d sandboxes after a restore", n)
	}
	if err := s.Restore(t.Context(), "work@two"); err != nil {
		t.Fatal(err)
	}
	want(t, "x", py(t, s, noted(k.b)), "2")
	other, opened, err := k.m.Open(t.Context(), Key{Name: "other"}, OpenOptions{Settings: Settings{From: "work@one"}})
	if err != nil || !opened.New {
		t.Fatal(opened, err)
	}
	want(t, "x in a new session", py(t, other, noted(k.b)), "1")
	py(t, other, note(10))
	want(t, "x in the old one", py(t, s, noted(k.b)), "2")
	wantCode(t, "no such snapshot", s.Restore(t.Context(), "none"), v1.CodeSnapshotNotFound)
	_, err = s.Save(t.Context(), "one")
	wantCode(t, "the same name again", err, v1.CodeSnapshotExists)
	k.restart()
	s = k.get("work")
	if all, err := k.m.Snapshots(t.Context(), Key{Name: "work"}); err != nil || len(all) != 3 || s.Info().Snapshots != 3 {
		t.Errorf("snapshots after a restart: %v, %v, %d", all, err, s.Info().Snapshots)
	}
	if err := s.End(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	again, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Settings: Settings{From: "work@two"}})
	if err != nil {
		t.Fatal(err)
	}
	want(t, "x after the session has ended", py(t, again, noted(k.b)), "2")
	if err := k.m.DeleteSnapshot(t.Context(), Key{Name: "work"}, "*"); err != nil {
		t.Fatal(err)
	}
	if n := k.images(); n != 0 {
		t.Errorf("%d images are left", n)
	}
	wantCode(t, "delete what is not there", k.m.DeleteSnapshot(t.Context(), Key{Name: "work"}, "one"), v1.CodeSnapshotNotFound)
}

func TestAnImageStaysWhileSomethingNeedsIt(t *testing.T) {
	k := newBench(t, quick())
	s := k.open("work")
	py(t, s, "x = 41")
	if err := s.Hibernate(t.Context()); err != nil {
		t.Fatal(err)
	}
	save(t, s, "asleep") // of a sleeping session: the image gets a name
	want(t, "state", string(s.Info().State), string(v1.StateHibernated))
	if n := k.images(); n != 1 {
		t.Errorf("%d images", n)
	}
	want(t, "x + 1", py(t, s, "x + 1"), "42")
	k.restart()
	s = k.get("work")
	if n := k.images(); n != 1 {
		t.Errorf("%d images after it woke: the name needs it", n)
	}
	py(t, s, "x = 0")
	if err := s.Restore(t.Context(), "asleep"); err != nil {
		t.Fatal(err)
	}
	want(t, "x", py(t, s, "x"), "41")
	if err := k.m.DeleteSnapshot(t.Context(), Key{Name: "work"}, "asleep"); err != nil {
		t.Fatal(err)
	}
	if n := k.images(); n != 0 {
		t.Errorf("%d images after its name has gone", n)
	}
}

func TestSnapshotLimit(t *testing.T) {
	k := newBench(t, quick())
	s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Settings: Settings{Policy: Policy{Snapshots: 2}}})
	if err != nil {
		t.Fatal(err)
	}
	save(t, s, "a")
	save(t, s, "b")
	_, err = s.Save(t.Context(), "c")
	wantCode(t, "a third", err, v1.CodeSessionLimit)
	if err := k.m.DeleteSnapshot(t.Context(), Key{Name: "work"}, "a"); err != nil {
		t.Fatal(err)
	}
	save(t, s, "c")
	if err := k.m.DeleteSnapshot(t.Context(), Key{Name: "work"}, "*"); err != nil {
		t.Fatal(err)
	}
}

func TestSnapshotsAreCountedRightWhileOneIsDeleted(t *testing.T) {
	var racing atomic.Pointer[bench]
	onFailpoint(t, func(name string) {
		if k := racing.Load(); k != nil && name == "snapshot.named" {
			if err := k.m.DeleteSnapshot(t.Context(), Key{Name: "work"}, "one"); err != nil {
				t.Error(err)
			}
		}
	})
	k := newBench(t, quick())
	s := k.open("work")
	save(t, s, "one")
	racing.Store(k)
	save(t, s, "two")
	if n := s.Info().Snapshots; n != 1 {
		t.Errorf("it has %d snapshots, want 1", n)
	}
	if err := k.m.DeleteSnapshot(t.Context(), Key{Name: "work"}, "two"); err != nil {
		t.Fatal(err)
	}
}

func TestForksAreLiveCopies(t *testing.T) {
	k := newBench(t, quick())
	s := k.open("work")
	py(t, s, "x = 41")
	if err := s.SetVar(t.Context(), "colour", "red"); err != nil {
		t.Fatal(err)
	}
	k.open("work-2")
	forks, err := s.Fork(t.Context(), 3, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"work-1", "work-3", "work-4"} {
		f := forks[i]
		want(t, "name", f.Key().Name, name)
		want(t, "x", py(t, f, fmt.Sprintf("x += %d; x", i)), fmt.Sprint(41+i))
		if v, err := f.Var(t.Context(), "colour"); err != nil || v != "red" {
			t.Errorf("variable of the copy: %q, %v", v, err)
		}
	}
	want(t, "x of the first", py(t, s, "x"), "41")
	if n := k.images(); n != 0 {
		t.Errorf("%d images are left", n)
	}
	_, err = s.Fork(t.Context(), 2, []string{"new", "work-1"})
	wantCode(t, "a name that is taken", err, v1.CodeSessionExists)
	_, err = k.m.Get(t.Context(), Key{Name: "new"})
	wantCode(t, "the other name", err, v1.CodeSessionNotFound)
	_, err = s.Fork(t.Context(), 2, []string{"same", "same"})
	wantCode(t, "one name twice", err, v1.CodeSessionExists)
	_, err = s.Fork(t.Context(), -1, nil)
	wantCode(t, "-1 copies", err, v1.CodeInvalidRequest)
}
