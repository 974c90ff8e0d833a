package backendkit

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

func newStore(t *testing.T) Store { return Store{Dir: t.TempDir(), Backend: "test"} }

// add makes the directory of a sandbox with its record.
func add(t *testing.T, s Store, r Record) {
	t.Helper()
	if err := os.Mkdir(s.Path(r.ID), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Save(r.ID, r); err != nil {
		t.Fatal(err)
	}
}

func TestARecordIsFoundAgain(t *testing.T) {
	s := newStore(t)
	type larger struct {
		Record
		Engine string `json:"engine"`
	}
	want := larger{NewRecord("x-", sandbox.Spec{Shell: "zsh"}, "hash"), "e"}
	if err := os.Mkdir(s.Path(want.ID), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Save(want.ID, want); err != nil {
		t.Fatal(err)
	}
	var got larger
	if err := s.Load(want.ID, &got); err != nil || got.ID != want.ID || got.Spec.Shell != "zsh" || got.Token != want.Token || got.Engine != "e" {
		t.Errorf("%+v, %v", got, err)
	}
	for _, id := range []string{"", "x-none", "..", "../" + want.ID, "X", strings.Repeat("x", 65), "a/b"} {
		if err := s.Load(id, &got); v1.CodeOf(err) != v1.CodeNotFound {
			t.Errorf("%q: %v", id, err)
		}
	}
	if err := os.WriteFile(s.Path(want.ID, recordFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Load(want.ID, &got); err == nil || v1.CodeOf(err) == v1.CodeNotFound {
		t.Errorf("half a record: %v", err)
	}
}

func TestSandboxesAreListedOldestFirst(t *testing.T) {
	s := newStore(t)
	var want []string
	for i := range 3 {
		r := NewRecord("x-", sandbox.Spec{Labels: map[string]string{"n": strconv.Itoa(i)}}, "")
		r.Created = time.Unix(int64(i), 0)
		add(t, s, r)
		want = append(want, r.ID)
	}
	if err := os.Mkdir(s.Path("x-being-made"), 0o700); err != nil {
		t.Fatal(err)
	}
	all, err := s.List(func(i *sandbox.Info) { i.Running = i.Labels["n"] == "1" })
	if err != nil || len(all) != 3 {
		t.Fatalf("%+v, %v", all, err)
	}
	for i, info := range all {
		if info.ID != want[i] || info.Running != (i == 1) || info.Backend != "test" {
			t.Errorf("%d: %+v", i, info)
		}
	}
	if all, err := (Store{Dir: filepath.Join(s.Dir, "none")}).List(nil); err != nil || all != nil {
		t.Errorf("%v, %v", all, err)
	}
}

func TestOneProgramIsAttached(t *testing.T) {
	s := newStore(t)
	r := NewRecord("x-", sandbox.Spec{}, "")
	add(t, s, r)
	l, err := s.Attach(r.ID)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Attach(r.ID)
	if v1.CodeOf(err) != v1.CodeBusy || !strings.Contains(err.Error(), "process "+strconv.Itoa(os.Getpid())+" ") {
		t.Errorf("a lock that is held: %v", err)
	}
	s.IfUnattached(r.ID, func() { t.Error("f was called although a program is attached") })
	time.AfterFunc(attachWait/3, l.Release)
	if l, err = s.Attach(r.ID); err != nil {
		t.Fatal(err)
	}
	l.Release()
	free := false
	s.IfUnattached(r.ID, func() { free = true })
	if !free {
		t.Error("f was not called although no program is attached")
	}
	if _, err := s.Attach("x-none"); v1.CodeOf(err) != v1.CodeNotFound || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an ended sandbox: %v", err)
	}
}

func TestASweepEndsOrphans(t *testing.T) {
	s := newStore(t)
	records := map[string]Record{}
	for _, name := range []string{"mine", "kept", "attached", "orphan", "orphan-two"} {
		r := NewRecord("x-", sandbox.Spec{Persist: name == "kept"}, "")
		if name != "mine" {
			r.Owner.Start++ // another process with our PID
		}
		add(t, s, r)
		records[name] = r
	}
	if err := os.Mkdir(s.Path("x-without-record"), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := s.Attach(records["attached"].ID)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	var ended []string
	stuck := errors.New("stuck")
	err = s.Sweep(t.Context(), func(_ context.Context, id string) error {
		ended = append(ended, id)
		return stuck
	})
	want := []string{records["orphan"].ID, records["orphan-two"].ID}
	slices.Sort(want)
	if !slices.Equal(ended, want) || !errors.Is(err, stuck) {
		t.Errorf("ended %q, want %q; %v", ended, want, err)
	}
	// Another program took the sandbox over and detached, after the sweep had read the record.
	adopted := records["orphan"]
	adopted.Owner = Self()
	if err := s.Save(adopted.ID, adopted); err != nil {
		t.Fatal(err)
	}
	if err := s.endOrphan(t.Context(), adopted.ID, func(context.Context, string) error { return stuck }); err != nil {
		t.Error("a sandbox with a new owner was ended")
	}
}

func TestAProcessIsOne(t *testing.T) {
	p := Self()
	if !p.Alive() || p.Dead() {
		t.Error("this process is reported as dead")
	}
	later := p
	later.Start++
	if later.Alive() || !later.Dead() {
		t.Error("another process with the same PID is reported as alive")
	}
	later.Machine = "another"
	if later.Dead() {
		t.Error("a process of another machine is reported as dead")
	}
	if none := (Process{}); none.Alive() || none.Dead() {
		t.Error("the zero process is reported as alive or dead")
	}
}
