package session

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/pool"
)

// keptStore is a store that the caller of New owns.
type keptStore struct {
	store.Store
	closed atomic.Bool
}

func (s *keptStore) Close() error {
	s.closed.Store(true)
	return s.Store.Close()
}

func TestAManagerUsesTheStoreItIsGiven(t *testing.T) {
	sqlite, err := store.OpenSQLite(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	st := &keptStore{Store: sqlite}
	t.Cleanup(func() { _ = st.Close() })
	o := quick()
	o.Store = st
	k := newBench(t, o)
	s := k.open("work")
	k.restart()
	want(t, "session after a restart", k.get("work").ID(), s.ID())
	if rows, err := sqlite.FindSessions(t.Context(), store.SessionQuery{Name: "work", Live: true}); err != nil || len(rows) != 1 || rows[0].ID != s.ID() {
		t.Errorf("the store has %+v, %v", rows, err)
	}
	if _, err := os.Stat(filepath.Join(k.dir, store.File)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the manager opened its own store: %v", err)
	}
	if st.closed.Load() {
		t.Error("the manager closed the caller's store")
	}
}

func TestOptionsAreChecked(t *testing.T) {
	_, err := New(t.Context(), Options{})
	wantCode(t, "no backend", err, v1.CodeInvalidRequest)
	k := newBench(t, quick())
	for name, o := range map[string]OpenOptions{
		"a negative time":         {Settings: Settings{Policy: Policy{Expires: -5}}},
		"an unknown action":       {Settings: Settings{Policy: Policy{OnIdle: "sing"}}},
		"a negative limit":        {Settings: Settings{Policy: Policy{Commands: -1}}},
		"an unknown gate":         {Settings: Settings{Gate: "maybe"}},
		"both new and old":        {New: true, Existing: true},
		"a variable that is none": {Settings: Settings{Vars: map[string]string{"a b": ""}}},
		"an unknown gate if new":  {IfNew: Settings{Gate: "maybe"}},
	} {
		_, _, err := k.m.Open(t.Context(), Key{Name: "work"}, o)
		wantCode(t, name, err, v1.CodeInvalidRequest)
	}
	_, _, err = k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Settings: Settings{Spec: &sandbox.Spec{Limits: sandbox.Limits{Memory: -1}}}})
	wantCode(t, "a negative memory", err, v1.CodeInvalidSpec)
	_, _, err = k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Settings: Settings{Labels: map[string]string{labelInstance: "x"}}})
	wantCode(t, "a label of ours", err, v1.CodeInvalidRequest)
	_, _, err = k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Settings: Settings{Spec: &sandbox.Spec{Labels: map[string]string{"a": "b"}}}})
	wantCode(t, "labels of a spec", err, v1.CodeInvalidSpec)
	_, _, err = k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Settings: Settings{Backend: "none"}})
	wantCode(t, "an unknown backend", err, v1.CodeBackendUnknown)
	_, err = k.m.Get(t.Context(), Key{Name: "work"})
	wantCode(t, "nothing was made", err, v1.CodeSessionNotFound)
}

func TestADamagedStoreStopsTheManagerAndStaysAsItIs(t *testing.T) {
	k := newBench(t, quick())
	o := k.opts
	o.DataDir = t.TempDir()
	path := filepath.Join(o.DataDir, store.File)
	text := strings.Repeat("not a database ", 1000)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := New(t.Context(), o)
	wantCode(t, "a damaged store", err, v1.CodeStoreCorrupt)
	if b, err := os.ReadFile(path); err != nil || string(b) != text {
		t.Errorf("the file was changed: %v", err)
	}
}

func TestAPoolServesSessions(t *testing.T) {
	o := quick()
	o.NoPool, o.Pool, o.Warm = false, pool.Options{Min: 1, Target: 1, Max: 1}, []sandbox.Spec{{}}
	k := newBench(t, o)
	await(t, "a sandbox is ready", func() bool { return k.m.PoolStats()[k.b.Name()].Ready == 1 })
	s := k.open("work")
	py(t, s, "x = 41")
	if st := k.m.PoolStats()[k.b.Name()]; st.Hits != 1 {
		t.Errorf("pool %+v", st)
	}
	k.restart()
	want(t, "x + 1", py(t, k.get("work"), "x + 1"), "42")
}

func TestManyOpensAndEndsOfOneKey(t *testing.T) {
	k := newBench(t, quick())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 4 {
				s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				_, err = s.Cell(t.Context(), sandbox.Cell{Code: "1"})
				if code := v1.CodeOf(err); code != "" && code != v1.CodeSessionEnded {
					t.Error(err)
				}
				if err := s.End(t.Context(), ""); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	await(t, "no sandbox is left", func() bool { return k.sandboxes() == 0 })
}

func TestAChangedHostFileBehindASleeper(t *testing.T) {
	k := newBench(t, quick())
	dir, err := os.MkdirTemp("/var/tmp", "recluse-mount-")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "data")
	if err := os.WriteFile(file, []byte("as it was"), 0o644); err != nil {
		t.Fatal(err)
	}
	s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Settings: Settings{Spec: &sandbox.Spec{Mounts: []sandbox.Mount{{Host: dir, Path: "/data"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	py(t, s, "f = open('/data/data')")
	if err := s.Hibernate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Rename(file, file+".old"), os.WriteFile(file, []byte("another"), 0o644)); err != nil {
		t.Fatal(err)
	}
	_, err = s.Cell(t.Context(), sandbox.Cell{Code: "f.read()"})
	wantCode(t, "a cell", err, v1.CodeSnapshotStale)
	want(t, "state", string(s.Info().State), string(v1.StateHibernated))
	if err := os.Rename(file+".old", file); err != nil {
		t.Fatal(err)
	}
	want(t, "the file", py(t, s, "f.read()"), "'as it was'")
}

func TestASleeperWhoseImageHasGoneIsLost(t *testing.T) {
	k := newBench(t, quick())
	s := k.open("work")
	if err := s.Hibernate(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	id := s.rec.Hibernation.ID
	s.mu.Unlock()
	if err := k.b.DeleteSnapshot(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	_, err := s.Cell(t.Context(), sandbox.Cell{Code: "1"})
	wantCode(t, "a cell", err, v1.CodeSessionLost)
}

func TestEventsAreFollowedAcrossARestart(t *testing.T) {
	k := newBench(t, quick())
	s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Settings: Settings{Policy: Policy{Expires: v1.Duration(time.Hour)}}})
	if err != nil {
		t.Fatal(err)
	}
	var last int64
	for e, err := range s.Events(t.Context(), EventsOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		last = e.Seq
	}
	if last == 0 {
		t.Fatal("no event for its creation")
	}
	if err := s.SetVar(t.Context(), "a", "1"); err != nil {
		t.Fatal(err)
	}
	k.restart()
	s = k.get("work")
	heard := make(chan string, 10)
	over := make(chan struct{})
	go func() {
		defer close(over)
		for e, err := range s.Events(t.Context(), EventsOptions{After: last, Follow: true}) {
			if err != nil {
				t.Error(err)
				return
			}
			heard <- e.Kind + " " + string(e.State)
		}
	}()
	want(t, "the event of before", <-heard, "var ")
	if _, err := s.Extend(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	want(t, "the next", <-heard, "extended ")
	if err := s.End(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	want(t, "the last", <-heard, "state ended")
	<-over
}

func TestGCForgetsWhatIsOld(t *testing.T) {
	o := quick()
	o.RecordsKept, o.AuditKept = time.Nanosecond, time.Nanosecond
	k := newBench(t, o)
	old, kept := k.open("old"), k.open("kept")
	for _, s := range []*Session{old, kept} {
		save(t, s, "one")
		if err := s.End(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		<-s.disposed
	}
	k.open("kept") // its name is in use again, and so are its snapshots
	if err := k.m.journal.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := k.m.GC(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if c.Sessions != 1 || c.Snapshots != 1 || c.Bytes == 0 || c.Entries == 0 {
		t.Errorf("collected %+v", c)
	}
	if n := k.images(); n != 1 {
		t.Errorf("%d images are left", n)
	}
	if err := k.m.DeleteSnapshot(t.Context(), Key{Name: "kept"}, "one"); err != nil {
		t.Fatal(err)
	}
}

// strict is a gate that denies some code and cannot judge other code.
type strict struct{}

func (strict) Judge(_ context.Context, r gate.Request) (gate.Decision, error) {
	switch {
	case strings.Contains(r.Code, "riddle"):
		return gate.Decision{}, &v1.Error{Code: v1.CodeInternal, Message: "no judgement"}
	case r.Rules == gate.ModeBlock && strings.Contains(r.Code, "evil"):
		return gate.Decision{Action: v1.GateDeny, Reason: "that is evil"}, nil
	case strings.Contains(r.Code, "evil"):
		return gate.Decision{Action: v1.GateWarn, Reason: "that looks evil"}, nil
	}
	return gate.Decision{Action: v1.GateAllow}, nil
}

func TestTheGateJudgesBeforeCodeRuns(t *testing.T) {
	o := quick()
	o.Gate = strict{}
	k := newBench(t, o)
	for mode, want := range map[string]v1.Code{"off": "", "warn": "", "block": v1.CodeGateRefused} {
		s, _, err := k.m.Open(t.Context(), Key{Name: mode}, OpenOptions{Settings: Settings{Gate: mode}})
		if err != nil {
			t.Fatal(err)
		}
		v, err := s.Cell(t.Context(), sandbox.Cell{Code: "evil = 1"})
		wantCode(t, mode, err, want)
		if warned := err == nil && v.Metadata[MetaGate] != ""; warned != (mode == "warn") {
			t.Errorf("mode %s warned: %v", mode, warned)
		}
		_, err = s.Run(t.Context(), sandbox.Command{Shell: "true riddle"})
		if judged := mode != "off"; (err != nil) != judged {
			t.Errorf("mode %s, code that cannot be judged: %v", mode, err)
		}
	}
	want(t, "what is allowed", py(t, k.get("block"), "'ev' + 'il' in globals()"), "False")
	for e, err := range k.m.Audit(t.Context(), AuditOptions{Session: "block", Action: "cell", Limit: 1}) {
		if err != nil || e.Gate != string(v1.GateDeny) || e.Error != string(v1.CodeGateRefused) {
			t.Errorf("entry %+v, %v", e, err)
		}
	}
}
