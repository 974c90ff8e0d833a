package store

import (
	"bytes"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func open(t *testing.T, dir string) *SQLite {
	t.Helper()
	s, err := OpenSQLite(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestInstanceStaysTheSame(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := open(t, dir)
	id := a.Instance()
	must(t, a.Close())
	if b := open(t, dir); b.Instance() != id || len(id) != 16 {
		t.Errorf("instance %q became %q", id, b.Instance())
	}
}

func TestASecondOpenNamesTheProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open(t, dir)
	_, err := OpenSQLite(t.Context(), dir)
	if v1.CodeOf(err) != v1.CodeDataLocked || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Fatalf("got %v, want a locked directory and our pid", err)
	}
}

const holdEnv = "RECLUSE_TEST_HOLD"

func TestTheLockGoesWithAKilledProcess(t *testing.T) {
	t.Parallel()
	if dir := os.Getenv(holdEnv); dir != "" {
		if _, err := OpenSQLite(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
		fmt.Println("held")
		select {}
	}
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestTheLockGoesWithAKilledProcess$")
	cmd.Env = append(os.Environ(), holdEnv+"="+dir)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	if _, err := out.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	_, err = OpenSQLite(t.Context(), dir)
	if v1.CodeOf(err) != v1.CodeDataLocked || !strings.Contains(err.Error(), strconv.Itoa(cmd.Process.Pid)) {
		t.Errorf("got %v, want a locked directory and pid %d", err, cmd.Process.Pid)
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait() // the process was killed
	open(t, dir)
}

func TestADamagedFileIsAnErrorAndStaysAsItIs(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(b []byte) []byte{
		"not a database": func([]byte) []byte { return bytes.Repeat([]byte("no database "), 1000) },
		"pages overwritten": func(b []byte) []byte {
			for i := 4096; i < len(b); i++ {
				b[i] ^= 0x5a
			}
			return b
		},
		"cut off": func(b []byte) []byte { return b[:len(b)/2] },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir)
			var all []Session
			for i := range 200 {
				all = append(all, Session{ID: strconv.Itoa(i), Tenant: "t", Name: strconv.Itoa(i), Live: true, Data: bytes.Repeat([]byte("x"), 500)})
			}
			must(t, s.SaveSessions(t.Context(), all...))
			must(t, s.Close())
			path := filepath.Join(dir, File)
			b, err := os.ReadFile(path)
			must(t, err)
			b = damage(b)
			must(t, os.WriteFile(path, b, 0o600))
			_, err = OpenSQLite(t.Context(), dir)
			if v1.CodeOf(err) != v1.CodeStoreCorrupt || !strings.Contains(err.Error(), path) {
				t.Fatalf("got %v, want store_corrupt with the path", err)
			}
			after, err := os.ReadFile(path)
			must(t, err)
			if !bytes.Equal(b, after) {
				t.Error("the damaged file was changed")
			}
		})
	}
}

func TestAStoreThatAnotherProgramHolds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := open(t, dir).Close(); err != nil {
		t.Fatal(err)
	}
	other, err := sql.Open("sqlite", filepath.Join(dir, File))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	holder, err := other.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	do := func(statement string) {
		t.Helper()
		if _, err := holder.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	do("BEGIN EXCLUSIVE")
	_, err = openSQLite(t.Context(), dir, 50*time.Millisecond)
	if e, ok := errors.AsType[*v1.Error](err); !ok || e.Code != v1.CodeStoreBusy || !e.Retry || e.Remedy == "" || !strings.Contains(e.Message, File) {
		t.Errorf("%v", err)
	}
	do("ROLLBACK")
	if err := open(t, dir).Close(); err != nil { // the failed attempt has released its lock
		t.Error(err)
	}
}

func TestANewerStoreIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	_, err := s.write.ExecContext(t.Context(), "PRAGMA user_version = 9999")
	must(t, err)
	must(t, s.Close())
	if _, err := OpenSQLite(t.Context(), dir); v1.CodeOf(err) != CodeNewer {
		t.Fatalf("got %v", err)
	}
}

func TestOneLiveSessionPerKey(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	a := Session{ID: "a", Tenant: "t", Name: "n", State: "ready", Live: true, Data: []byte("{}")}
	must(t, s.SaveSessions(t.Context(), a))
	b := a
	b.ID = "b"
	if err := s.SaveSessions(t.Context(), b); !errors.Is(err, ErrExists) {
		t.Fatalf("got %v", err)
	}
	a.Live, a.Ended = false, time.Now()
	must(t, s.SaveSessions(t.Context(), a, b))
	found, err := s.FindSessions(t.Context(), SessionQuery{Tenant: "t", Name: "n"})
	must(t, err)
	if len(found) != 2 || found[0].ID != "b" || found[1].Ended.IsZero() {
		t.Errorf("found %+v", found)
	}
	live, err := s.FindSessions(t.Context(), SessionQuery{Live: true})
	must(t, err)
	if len(live) != 1 || live[0].ID != "b" {
		t.Errorf("live sessions: %+v", live)
	}
}

func TestVarsGoWithTheirSession(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	must(t, s.SaveSessions(t.Context(), Session{ID: "a", Tenant: "t", Name: "n", Live: true, Data: []byte("{}")}))
	must(t, s.SetVars(t.Context(), "a", map[string]string{"k": "v", "l": "w"}))
	must(t, s.SetVars(t.Context(), "a", map[string]string{"k": "v2"}))
	if found, err := s.DeleteVar(t.Context(), "a", "l"); err != nil || !found {
		t.Errorf("delete: %v, %v", found, err)
	}
	if found, err := s.DeleteVar(t.Context(), "a", "l"); err != nil || found {
		t.Errorf("delete again: %v, %v", found, err)
	}
	vars, err := s.Vars(t.Context(), "a")
	must(t, err)
	if len(vars) != 1 || vars["k"] != "v2" {
		t.Errorf("vars: %v", vars)
	}
	must(t, s.DropSessions(t.Context(), "a"))
	if vars, err = s.Vars(t.Context(), "a"); err != nil || len(vars) != 0 {
		t.Errorf("vars of a dropped session: %v, %v", vars, err)
	}
}

func TestImagesAreCountedOverSnapshotsAndSessions(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	must(t, s.SaveSessions(t.Context(), Session{ID: "a", Tenant: "t", Name: "n", Live: true, Image: "g/1", Data: []byte("{}")}))
	must(t, s.AddSnapshot(t.Context(), Snapshot{ID: "1", Tenant: "t", Session: "n", Name: "x", Image: "g/1", Data: []byte("{}")}))
	must(t, s.AddSnapshot(t.Context(), Snapshot{ID: "2", Tenant: "t", Session: "n", Name: "y", Image: "g/2", Data: []byte("{}")}))
	if err := s.AddSnapshot(t.Context(), Snapshot{ID: "3", Tenant: "t", Session: "n", Name: "y", Image: "g/3", Data: []byte("{}")}); !errors.Is(err, ErrExists) {
		t.Errorf("a second snapshot of a name: %v", err)
	}
	must(t, s.DropSnapshots(t.Context(), "2"))
	all, err := s.Images(t.Context())
	must(t, err)
	n, err := s.ImageUses(t.Context(), "g/1")
	must(t, err)
	if len(all) != 1 || all["g/1"] != 2 || n != 2 {
		t.Errorf("images are %v, uses %d", all, n)
	}
}

func TestASnapshotIsAddedTogetherWithWhatChangesByIt(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	of := func(data string) Session {
		return Session{ID: "a", Tenant: "t", Name: "n", Live: true, Data: []byte(data)}
	}
	is := func(want string) {
		t.Helper()
		all, err := s.FindSessions(t.Context(), SessionQuery{ID: "a"})
		must(t, err)
		if len(all) != 1 || string(all[0].Data) != want {
			t.Errorf("the session is %+v, want %s", all, want)
		}
	}
	must(t, s.SaveSessions(t.Context(), of("old")))
	must(t, s.AddSnapshot(t.Context(), Snapshot{ID: "1", Tenant: "t", Session: "n", Name: "x", Image: "g/1", Data: []byte("{}")}, of("new")))
	is("new")
	if err := s.AddSnapshot(t.Context(), Snapshot{ID: "2", Tenant: "t", Session: "n", Name: "x", Image: "g/2", Data: []byte("{}")}, of("newer")); !errors.Is(err, ErrExists) {
		t.Errorf("a second snapshot of a name: %v", err)
	}
	is("new")
}

func TestAuditLog(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	old := time.Now().Add(-time.Hour)
	must(t, s.Append(t.Context(), Batch{Mark: 3, Entries: []Entry{
		{Time: old, Tenant: "t", Session: "a", Actor: "me", Action: "cell", Duration: time.Second},
		{Time: time.Now(), Tenant: "t", Session: "b", Actor: "me", Action: "end"},
		{Time: time.Now(), Tenant: "u", Session: "a", Actor: "you", Action: "cell"},
	}}))
	if n, err := s.Marked(t.Context()); err != nil || n != 3 {
		t.Errorf("marked %d, %v", n, err)
	}
	of, err := s.Entries(t.Context(), EntryQuery{Tenant: "t", Limit: 10})
	must(t, err)
	if len(of) != 2 || of[0].Duration != time.Second || of[1].Action != "end" {
		t.Errorf("entries %+v", of)
	}
	rest, err := s.Entries(t.Context(), EntryQuery{Tenant: "t", After: of[0].ID})
	must(t, err)
	if len(rest) != 1 {
		t.Errorf("rest %+v", rest)
	}
	for name, q := range map[string]EntryQuery{
		"since":          {Tenant: "t", Since: old.Add(time.Minute)},
		"last":           {Tenant: "t", Last: 1},
		"last and since": {Tenant: "t", Last: 5, Since: old.Add(time.Minute)},
	} {
		if got, err := s.Entries(t.Context(), q); err != nil || len(got) != 1 || got[0].Action != "end" {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if got, err := s.Entries(t.Context(), EntryQuery{Last: 2}); err != nil || len(got) != 2 || got[0].Session != "b" || got[1].Tenant != "u" {
		t.Errorf("the last two, oldest first: %+v, %v", got, err)
	}
	if n, err := s.TrimEntries(t.Context(), time.Now().Add(-time.Minute)); err != nil || n != 1 {
		t.Errorf("trimmed %d, %v", n, err)
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	must(t, s.Append(t.Context(), Batch{Events: []Event{{Session: "a", Seq: 1, Data: []byte("1")}, {Session: "a", Seq: 7, Data: []byte("7")}, {Session: "b", Seq: 2, Data: []byte("2")}}}))
	if n, err := s.Marked(t.Context()); err != nil || n != 0 {
		t.Errorf("marked %d, %v", n, err)
	}
	got, err := s.Events(t.Context(), "a", 1, 0)
	must(t, err)
	if len(got) != 1 || got[0].Seq != 7 {
		t.Errorf("events %+v", got)
	}
	last, err := s.LastEvent(t.Context())
	must(t, err)
	if last["a"] != 7 || last["b"] != 2 {
		t.Errorf("last %v", last)
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	hash := sha256.Sum256([]byte("secret"))
	k := APIKey{ID: "k1", Name: "ci", Tenant: "t", Scopes: []string{"read", "run"}, Hash: hash[:], Created: time.Now()}
	must(t, s.AddKey(t.Context(), k))
	all, err := s.Keys(t.Context(), "")
	must(t, err)
	if len(all) != 1 {
		t.Fatalf("keys %+v", all)
	}
	if got := all[0]; got.Name != "ci" || !bytes.Equal(got.Hash, k.Hash) || !slices.Equal(got.Scopes, k.Scopes) || !got.Revoked.IsZero() || !got.Expires.IsZero() {
		t.Errorf("got %+v", got)
	}
	if ok, err := s.RevokeKey(t.Context(), "other", "k1"); err != nil || ok {
		t.Errorf("revoked by another tenant: %v, %v", ok, err)
	}
	if ok, err := s.RevokeKey(t.Context(), "t", "k1"); err != nil || !ok {
		t.Errorf("revoke: %v, %v", ok, err)
	}
	all, err = s.Keys(t.Context(), "t")
	must(t, err)
	if len(all) != 1 || all[0].Revoked.IsZero() {
		t.Errorf("keys %+v", all)
	}
}

func TestTokensGoWithTheirSession(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	must(t, s.SaveSessions(t.Context(), Session{ID: "a", Tenant: "t", Name: "n", Live: true, Data: []byte("{}")}))
	must(t, s.AddToken(t.Context(), Token{ID: "1", Tenant: "t", Session: "a", Name: "n", Hash: []byte("h"), Expires: time.Now().Add(time.Hour)}))
	must(t, s.AddToken(t.Context(), Token{ID: "2", Tenant: "t", Session: "b", Name: "n", Hash: []byte("old"), Expires: time.Now().Add(-time.Hour)}))
	if got, err := s.TokenByHash(t.Context(), []byte("h")); err != nil || got.Session != "a" {
		t.Errorf("got %+v, %v", got, err)
	}
	must(t, s.DropTokens(t.Context(), ""))
	if _, err := s.TokenByHash(t.Context(), []byte("old")); !errors.Is(err, ErrNotFound) {
		t.Errorf("an expired token: %v", err)
	}
	must(t, s.DropSessions(t.Context(), "a"))
	if _, err := s.TokenByHash(t.Context(), []byte("h")); !errors.Is(err, ErrNotFound) {
		t.Errorf("token of a dropped session: %v", err)
	}
}

func TestAnIdempotencyKeyIsClaimedOnce(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	r := Reply{Tenant: "t", Key: "k", Request: []byte("digest")}
	var wg sync.WaitGroup
	claims := make(chan bool, 20)
	for range 20 {
		wg.Go(func() {
			_, ok, err := s.BeginReply(t.Context(), r)
			if err != nil {
				t.Error(err)
			}
			claims <- ok
		})
	}
	wg.Wait()
	close(claims)
	n := 0
	for ok := range claims {
		if ok {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d claims", n)
	}
	r.Status, r.Body, r.Header = 201, []byte("made"), map[string]string{"Location": "/x"}
	must(t, s.EndReply(t.Context(), r))
	old, ok, err := s.BeginReply(t.Context(), r)
	if err != nil || ok || !old.Done || old.Status != 201 || string(old.Body) != "made" || old.Header["Location"] != "/x" {
		t.Errorf("again: %+v, %v, %v", old, ok, err)
	}
	must(t, s.DropReply(t.Context(), "t", "k"))
	if _, ok, err := s.BeginReply(t.Context(), r); err != nil || !ok {
		t.Errorf("after dropping: %v, %v", ok, err)
	}
}
