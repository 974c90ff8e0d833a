package session

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestStateStaysBetweenCallsAndManagers(t *testing.T) {
	k := newBench(t, quick())
	s := k.open("work")
	py(t, s, "x = 41")
	want(t, "x + 1", py(t, k.get("work"), "x + 1"), "42")
	v, err := s.Run(t.Context(), sandbox.Command{Shell: "echo hello > /home/user/f; echo done"})
	if err != nil || v.Stdout.String() != "done\n" {
		t.Fatalf("%v, %v", v, err)
	}
	sandboxID := s.Info().Sandbox
	k.restart()
	s = k.get("work")
	want(t, "x + 1 after a restart", py(t, s, "x + 1"), "42")
	want(t, "the sandbox", s.Info().Sandbox, sandboxID)
	b, err := s.Files().ReadAll(t.Context(), "/home/user/f")
	if err != nil || string(b) != "hello\n" {
		t.Errorf("file holds %q, %v", b, err)
	}
}

func TestAHundredFirstCallsMakeOneSandbox(t *testing.T) {
	k := newBench(t, quick())
	var wg sync.WaitGroup
	var made atomic.Int32
	ids := make([]string, 100)
	for i := range ids {
		wg.Go(func() {
			s, opened, err := k.m.Open(t.Context(), Key{Name: "one"}, OpenOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			if opened.New {
				made.Add(1)
			}
			ids[i] = s.ID()
		})
	}
	wg.Wait()
	for _, id := range ids {
		want(t, "id", id, ids[0])
	}
	if made.Load() != 1 || k.sandboxes() != 1 {
		t.Errorf("%d calls report that they created it, and there are %d sandboxes", made.Load(), k.sandboxes())
	}
}

func TestSettingsIfNewAreForANewSessionAlone(t *testing.T) {
	k := newBench(t, quick())
	memory := func(n int64) *sandbox.Spec { return &sandbox.Spec{Limits: sandbox.Limits{Memory: n << 20}} }
	o := OpenOptions{
		Settings: Settings{Policy: Policy{Expires: v1.Duration(time.Hour)}},
		IfNew:    Settings{Spec: memory(256), Policy: Policy{Expires: v1.Duration(time.Minute), Commands: 3}, Vars: map[string]string{"a": "1"}, Role: "nurse"},
	}
	s, opened, err := k.m.Open(t.Context(), Key{Name: "work"}, o)
	if err != nil || !opened.New {
		t.Fatal(opened, err)
	}
	if opened.Spec.Limits.Memory != 256<<20 || opened.Policy.Expires.Std() != time.Hour || opened.Policy.Commands != 3 || opened.Role != "nurse" {
		t.Errorf("a new session is %+v", opened)
	}
	if v, err := s.Var(t.Context(), "a"); err != nil || v != "1" {
		t.Errorf("its variable is %q, %v", v, err)
	}
	o.IfNew = Settings{Spec: memory(128), Backend: "none", Policy: Policy{Commands: 4}, From: "work@none", Gate: "block", Role: "doctor", Vars: map[string]string{"a": "2"}}
	again, opened, err := k.m.Open(t.Context(), Key{Name: "work"}, o)
	if err != nil || opened.New || again != s || opened.ID != s.ID() || opened.Policy.Commands != 3 {
		t.Errorf("an existing session: %+v, %v", opened, err)
	}
	o.Spec = memory(128)
	_, _, err = k.m.Open(t.Context(), Key{Name: "work"}, o)
	wantCode(t, "a spec that is asked for in any case", err, v1.CodeSpecConflict)
}

func TestAnotherSpecIsAConflict(t *testing.T) {
	k := newBench(t, quick())
	s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Settings: Settings{Vars: map[string]string{"a": "1"}}})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Settings: Settings{Spec: &sandbox.Spec{Limits: sandbox.Limits{Memory: 256 << 20}}}})
	wantCode(t, "other limits", err, v1.CodeSpecConflict)
	if err != nil && !strings.Contains(err.Error(), "memory (512 MiB, requested 256 MiB)") {
		t.Errorf("%v does not name what differs", err)
	}
	_, _, err = k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Settings: Settings{Backend: "local"}})
	wantCode(t, "other backend", err, v1.CodeSpecConflict)
	_, _, err = k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{New: true})
	wantCode(t, "new", err, v1.CodeSessionExists)
	for name, c := range map[string]struct {
		o    OpenOptions
		says string
	}{
		"another gate":             {OpenOptions{Settings: Settings{Gate: "block"}}, "gate is as the server is configured, not block"},
		"another shell":            {OpenOptions{Settings: Settings{Spec: &sandbox.Spec{Shell: "dash"}}}, "shell"},
		"another user":             {OpenOptions{Settings: Settings{Spec: &sandbox.Spec{User: "2000"}}}, "user"},
		"other options":            {OpenOptions{Settings: Settings{Spec: &sandbox.Spec{Options: map[string]json.RawMessage{k.b.Name(): []byte("{}")}}}}, "options"},
		"another role":             {OpenOptions{Settings: Settings{Role: "nurse"}}, "role"},
		"another lifetime":         {OpenOptions{Settings: Settings{Policy: Policy{Expires: v1.Duration(time.Hour), Idle: v1.Duration(DefaultIdle)}}}, "differs in expires"},
		"another limit":            {OpenOptions{Settings: Settings{Policy: Policy{Commands: 3}}}, "differs in commands (32, requested 3)"},
		"another snapshot":         {OpenOptions{Settings: Settings{From: "other@one"}}, "other@one"},
		"other first variables":    {OpenOptions{Settings: Settings{Vars: map[string]string{"a": "2", "b": "2"}}}, ""},
		"what it has":              {OpenOptions{Settings: Settings{Vars: map[string]string{"a": "1"}, Policy: Policy{Expires: v1.NoLimit, OnIdle: s.Info().Policy.OnIdle}}}, ""},
		"other labels":             {OpenOptions{Settings: Settings{Labels: map[string]string{"team": "web"}}}, ""},
		"what it has, by its name": {OpenOptions{Settings: Settings{Backend: k.b.Name()}}, ""},
	} {
		_, _, err := k.m.Open(t.Context(), Key{Name: "work"}, c.o)
		if c.says == "" {
			wantCode(t, name, err, "")
			continue
		}
		wantCode(t, name, err, v1.CodeSpecConflict)
		if err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v does not contain %s", err, c.says)
		}
	}
	if vars, err := s.Vars(t.Context()); err != nil || len(vars) != 1 || vars["a"] != "1" {
		t.Errorf("a live session lost its variables: %v, %v", vars, err)
	}
	_, opened, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Settings: Settings{Spec: &sandbox.Spec{}}})
	if err != nil || opened.New {
		t.Errorf("the same spec: created %v, %v", opened.New, err)
	}
	_, _, err = k.m.Open(t.Context(), Key{Name: "other"}, OpenOptions{Existing: true})
	wantCode(t, "existing", err, v1.CodeSessionNotFound)
}

func TestKeys(t *testing.T) {
	k := newBench(t, quick())
	for _, name := range []string{"", "a b", "a/b", "a@b", "a:b", "ü", "a\x00", strings.Repeat("a", 129), "../a"} {
		_, _, err := k.m.Open(t.Context(), Key{Name: name}, OpenOptions{})
		wantCode(t, "name "+name, err, v1.CodeInvalidKey)
		_, err = k.m.Get(t.Context(), Key{Name: name})
		wantCode(t, "name "+name, err, v1.CodeInvalidKey)
	}
	s := k.open(strings.Repeat("a", 120) + "-_.Z0")
	k.m.mu.Lock()
	k.m.live[Key{Tenant: DefaultTenant, Name: "a:b"}] = s // of a version with other rules
	k.m.mu.Unlock()
	if _, err := k.m.Get(t.Context(), Key{Name: "a:b"}); err != nil {
		t.Errorf("a live session with such a name: %v", err)
	}
	k.m.mu.Lock()
	delete(k.m.live, Key{Tenant: DefaultTenant, Name: "a:b"})
	k.m.mu.Unlock()
	if named, byID, err := k.m.Resolve(t.Context(), Key{Name: s.ID()}); err != nil || !byID || named != s.Key() {
		t.Errorf("its id resolves to %v, %v", named, err)
	}
	other, _, err := k.m.Open(t.Context(), Key{Tenant: "other", Name: "x"}, OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if named, byID, err := k.m.Resolve(t.Context(), Key{Name: other.ID()}); err != nil || byID || named.Name == "x" {
		t.Errorf("the id of another tenant's session resolves to %v, %v", named, err)
	}
	_, _, err = k.m.Open(t.Context(), Key{Tenant: "a tenant", Name: "x"}, OpenOptions{})
	wantCode(t, "tenant", err, v1.CodeInvalidKey)
}

func TestTenantsDoNotSeeEachOther(t *testing.T) {
	k := newBench(t, quick())
	s, _, err := k.m.Open(t.Context(), Key{Tenant: "a", Name: "work"}, OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Save(t.Context(), "snap"); err != nil {
		t.Fatal(err)
	}
	_, err = k.m.Get(t.Context(), Key{Tenant: "b", Name: "work"})
	wantCode(t, "get", err, v1.CodeSessionNotFound)
	for i, err := range k.m.List(t.Context(), ListOptions{Tenant: "b"}) {
		t.Errorf("listed %v, %v", i, err)
	}
	_, _, err = k.m.Open(t.Context(), Key{Tenant: "b", Name: "mine"}, OpenOptions{Settings: Settings{From: "work@snap"}})
	wantCode(t, "from", err, v1.CodeSnapshotNotFound)
	wantCode(t, "delete", k.m.DeleteSnapshot(t.Context(), Key{Tenant: "b", Name: "work"}, "snap"), v1.CodeSnapshotNotFound)
	if all, err := k.m.Snapshots(t.Context(), Key{Tenant: "b"}); err != nil || len(all) != 0 {
		t.Errorf("snapshots %v, %v", all, err)
	}
	_, err = k.m.Get(t.Context(), Key{Tenant: "b", Name: "mine"})
	wantCode(t, "the session that could not be made", err, v1.CodeSessionNotFound)
}

// trapping is a shell script that writes a file in a mounted directory a moment after SIGTERM, and ends. It is ready
// when its file NAME.ready exists.
func trapping(name string) string {
	return "trap 'sleep 0.2; echo heard > /out/" + name + "; exit 0' TERM; touch /out/" + name + ".ready; while :; do sleep 0.05; done"
}

func TestEndIsHeardByEverythingThatRuns(t *testing.T) {
	for name, detached := range map[string]bool{"of a session that is attached": false, "of one that is not": true} {
		t.Run(name, func(t *testing.T) {
			o := quick()
			o.endGrace = time.Minute // on a busy machine the default of five seconds may be too short
			k := newBench(t, o)
			dir, err := os.MkdirTemp("/var/tmp", "recluse-mount-")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = os.RemoveAll(dir) }()
			if err := os.Chmod(dir, 0o777); err != nil {
				t.Fatal(err)
			}
			s, _, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{Settings: Settings{Spec: &sandbox.Spec{Mounts: []sandbox.Mount{{Host: dir, Path: "/out", Writable: true}}}}})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Start(t.Context(), sandbox.Command{Shell: trapping("command")}); err != nil {
				t.Fatal(err)
			}
			if v, err := s.Run(t.Context(), sandbox.Command{Shell: "(" + trapping("left") + ") > /dev/null 2>&1 &"}); err != nil || !v.OK() {
				t.Fatal(v, err)
			}
			py(t, s, "import subprocess; p = subprocess.Popen(['/bin/sh', '-c', "+strconv.Quote(trapping("cell"))+"])")
			names := []string{"command", "left", "cell"}
			for _, n := range names {
				await(t, n+" is ready", func() bool { _, err := os.Stat(filepath.Join(dir, n+".ready")); return err == nil })
			}
			if detached {
				s.mu.Lock()
				sb := s.attachment.detach()
				s.mu.Unlock()
				sb.Detach()
			}
			if err := s.End(t.Context(), ""); err != nil {
				t.Fatal(err)
			}
			<-s.disposed
			for _, n := range names {
				if b, err := os.ReadFile(filepath.Join(dir, n)); err != nil || string(b) != "heard\n" {
					t.Errorf("%s wrote %q: %v", n, b, err)
				}
			}
		})
	}
}

func TestEndFreesTheKeyAtOnce(t *testing.T) {
	k := newBench(t, quick())
	s := k.open("work")
	py(t, s, "x = 1")
	if _, err := s.Start(t.Context(), sandbox.Command{Shell: "trap '' TERM; touch deaf; sleep 1000 & wait; sleep 1000"}); err != nil {
		t.Fatal(err)
	}
	await(t, "it does not listen", func() bool { return py(t, s, "__import__('os').path.exists('deaf')") == "True" })
	begun := time.Now()
	for range 2 { // the second call is not an error
		if err := s.End(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
	}
	_, err := s.Cell(t.Context(), sandbox.Cell{Code: "1"})
	wantCode(t, "a cell of an ended session", err, v1.CodeSessionEnded)
	_, err = k.m.Get(t.Context(), Key{Name: "work"})
	wantCode(t, "get", err, v1.CodeSessionNotFound)
	again := k.open("work")
	if again.ID() == s.ID() {
		t.Error("the new session has the id of the previous one")
	}
	want(t, "x in the new session", py(t, again, "'x' in globals()"), "False")
	var states []State
	for i, err := range k.m.List(t.Context(), ListOptions{States: []State{v1.StateEnded, v1.StateReady}}) {
		if err != nil {
			t.Fatal(err)
		}
		states = append(states, i.State)
	}
	if len(states) != 2 {
		t.Errorf("listed states %v", states)
	}
	<-s.disposed
	if took := time.Since(begun); took < 5*time.Second {
		t.Errorf("a process that ignores SIGTERM was killed after %s, want five seconds", took)
	}
}

func TestARepeatedRequestFindsWhatItHasMadeAndNothingElse(t *testing.T) {
	k := newBench(t, quick())
	one, two := WithRequest(t.Context(), "one"), WithRequest(t.Context(), "two")
	open := func(ctx context.Context, o OpenOptions) (string, bool, error) {
		s, opened, err := k.m.Open(ctx, Key{Name: "work"}, o)
		if err != nil {
			return "", false, err
		}
		return s.ID(), opened.New, nil
	}
	id, created, err := open(one, OpenOptions{New: true})
	if err != nil || !created {
		t.Fatal(created, err)
	}
	k.restart()
	if again, created, err := open(one, OpenOptions{New: true}); again != id || !created || err != nil {
		t.Errorf("%s, %v, %v; it is %s", again, created, err, id)
	}
	for what, ctx := range map[string]context.Context{"another request": two, "no request": t.Context(), "an empty one": WithRequest(t.Context(), "")} {
		_, _, err := open(ctx, OpenOptions{New: true})
		wantCode(t, what, err, v1.CodeSessionExists)
		if found, created, err := open(ctx, OpenOptions{}); found != id || created || err != nil {
			t.Errorf("%s: %s, %v, %v", what, found, created, err)
		}
	}

	s := k.get("work")
	snap, err := s.Save(one, "a")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.Save(one, "a"); err != nil || again.ID != snap.ID {
		t.Errorf("%+v, %v", again, err)
	}
	_, err = s.Save(two, "a")
	wantCode(t, "a snapshot of another request's", err, v1.CodeSnapshotExists)

	if err := k.m.DeleteSnapshot(t.Context(), Key{Name: "work"}, "*"); err != nil {
		t.Fatal(err)
	}

	if !sleeps(k.b) {
		return
	}
	forks := func(ctx context.Context) string {
		t.Helper()
		made, err := k.get("work").Fork(ctx, 2, []string{"b", "a"})
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, f := range made {
			ids = append(ids, f.Key().Name+" "+f.ID())
		}
		return strings.Join(ids, ", ")
	}
	fork := WithRequest(t.Context(), "fork")
	made := forks(fork)
	k.restart()
	want(t, "the copies", forks(fork), made)
	_, err = k.get("work").Fork(two, 2, []string{"b", "a"})
	wantCode(t, "copies of another request's", err, v1.CodeSessionExists)
	if err := k.get("b").End(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if _, left, _ := strings.Cut(made, ", "); forks(fork) != left {
		t.Errorf("of %s %s is left", made, left)
	}
}

// The first verdict of a session reports that the previous session with its name has ended.
func TestANewSessionTellsOfThePreviousOneOfItsName(t *testing.T) {
	k := newBench(t, quick())
	open := func() (*Session, Opened) {
		s, opened, err := k.m.Open(t.Context(), Key{Name: "work"}, OpenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return s, opened
	}
	run := func(s *Session) string {
		v, err := s.Cell(t.Context(), sandbox.Cell{Code: "1"})
		if err != nil {
			t.Fatal(err)
		}
		return v.Metadata[MetaPrevious]
	}
	first, opened := open()
	if got := run(first); got != "" || opened.Previous != nil {
		t.Errorf("the first session of a name reports a previous one: %q, %+v", got, opened.Previous)
	}
	if err := first.End(t.Context(), "no longer needed"); err != nil {
		t.Fatal(err)
	}
	second, opened := open()
	if p := opened.Previous; p == nil || p.ID != first.ID() || p.State != v1.StateEnded || p.Ended.IsZero() {
		t.Errorf("previous is %+v", p)
	}
	if got := run(second); !strings.Contains(got, "no longer needed") {
		t.Errorf("the first verdict reports %q", got)
	}
	if got := run(second); got != "" || second.Info().Previous != nil {
		t.Errorf("it is reported again: %q", got)
	}
}

func TestACopyTellsOfThePreviousSessionOfItsName(t *testing.T) {
	k := newBench(t, quick())
	s := k.open("work")
	first, err := s.Fork(t.Context(), 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if p := first[0].Info().Previous; p != nil {
		t.Errorf("the first session of a name reports a previous one: %+v", p)
	}
	if err := first[0].End(t.Context(), "no longer needed"); err != nil {
		t.Fatal(err)
	}
	copies, err := s.Fork(t.Context(), 2, []string{"work-1", "other"})
	if err != nil {
		t.Fatal(err)
	}
	if p := copies[0].Info().Previous; p == nil || p.ID != first[0].ID() || p.State != v1.StateEnded {
		t.Errorf("previous is %+v", p)
	}
	if p := copies[1].Info().Previous; p != nil {
		t.Errorf("a copy with a new name reports a previous session: %+v", p)
	}
	v, err := copies[0].Cell(t.Context(), sandbox.Cell{Code: "1"})
	if err != nil {
		t.Fatal(err)
	}
	if got := v.Metadata[MetaPrevious]; !strings.Contains(got, "no longer needed") {
		t.Errorf("the first verdict reports %q", got)
	}
}
