package client_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/server"
	"github.com/recluse-dev/recluse/internal/server/servertest"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// lockedBuffer is safe for concurrent use.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestLifeOfASession(t *testing.T) {
	k := servertest.New(t, server.Options{})
	c := k.Client(k.Key("a", "execute"))
	ctx := t.Context()
	s, err := c.Create(ctx, "", session.OpenOptions{Settings: session.Settings{Vars: map[string]string{"who": "me"}, Policy: session.Policy{Expires: v1.Duration(time.Hour)}}})
	if err != nil {
		t.Fatal(err)
	}
	i, err := s.Info(ctx)
	if err != nil || i.Key.Tenant != "a" || i.Policy.Expires.Std() != time.Hour || i.Key.Name != s.Name() {
		t.Errorf("%+v %v", i, err)
	}
	if v, err := s.Var(ctx, "who"); err != nil || v != "me" {
		t.Errorf("%q %v", v, err)
	}
	if err := s.SetVar(ctx, "a b/c", "ü"); err == nil {
		if all, err := s.Vars(ctx); err != nil || all["a b/c"] != "ü" {
			t.Errorf("%v %v", all, err)
		}
	}
	if err := s.DeleteVar(ctx, "who"); err != nil {
		t.Error(err)
	}
	if _, err := s.Var(ctx, "who"); v1.CodeOf(err) != v1.CodeVarNotFound {
		t.Errorf("%v", err)
	}
	cell(t, s, "x = 1")
	snap, err := s.Save(ctx, "warm")
	if err != nil || snap.Name != "warm" || snap.Size == 0 {
		t.Fatalf("%+v %v", snap, err)
	}
	cell(t, s, "x = 2")
	copies, err := s.Fork(ctx, 2, []string{"left", "right"})
	if err != nil || len(copies) != 2 {
		t.Fatal(copies, err)
	}
	for _, f := range copies {
		if v := cell(t, f, "x"); v.Result.Text() != "2" {
			t.Errorf("%s: %s", f.Name(), v.Result.Text())
		}
	}
	if err := s.Restore(ctx, "warm"); err != nil {
		t.Fatal(err)
	}
	if v := cell(t, s, "x"); v.Result.Text() != "1" {
		t.Errorf("restored: %s", v.Result.Text())
	}
	if err := s.Hibernate(ctx); err != nil {
		t.Fatal(err)
	}
	if i, err := s.Info(ctx); err != nil || i.State != v1.StateHibernated {
		t.Errorf("%+v %v", i.State, err)
	}
	if v := cell(t, s, "x"); v.Result.Text() != "1" {
		t.Errorf("woken: %s", v.Result.Text())
	}
	if err := s.Pause(ctx); err != nil {
		t.Error(err)
	}
	if err := s.Resume(ctx); err != nil {
		t.Error(err)
	}
	if e, err := s.Extend(ctx, 10*time.Minute); err != nil || e.Expires.Sub(e.Created) != time.Hour+10*time.Minute {
		t.Errorf("%+v %v", e, err)
	}
	if g, err := s.Guest(ctx); err != nil || g.UID != v1.DefaultUID {
		t.Errorf("%+v %v", g, err)
	}
	var names []string
	for i, err := range c.List(ctx, session.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, i.Key.Name)
	}
	if !sort.StringsAreSorted(names) || len(names) != 3 {
		t.Errorf("got %v", names)
	}
	snaps, err := c.Snapshots(ctx, s.Name())
	if err != nil || len(snaps) != 1 {
		t.Errorf("%v %v", snaps, err)
	}
	if err := c.DeleteSnapshot(ctx, s.Name(), "warm"); err != nil {
		t.Error(err)
	}
	kinds := map[string]bool{}
	for e, err := range s.Events(ctx, session.EventsOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		kinds[e.Kind] = true
	}
	if !kinds["state"] || !kinds["snapshot"] {
		t.Errorf("events: %v", kinds)
	}
	audit := k.Client(k.Key("a", "admin"))
	testneed.Await(t, "the audit log tells of the cells", func() bool {
		for e, err := range audit.Audit(ctx, session.AuditOptions{Action: "cell", Limit: 1}) {
			if err != nil {
				t.Fatal(err)
			}
			return e.Actor == "a execute" && e.Tenant == "a" && e.Detail == "x = 1"
		}
		return false
	})
	if err := s.End(ctx, ""); err != nil {
		t.Error(err)
	}
}

func TestSettingsIfNew(t *testing.T) {
	k := servertest.New(t, server.Options{})
	with := func(memory int64) session.OpenOptions {
		return session.OpenOptions{IfNew: session.Settings{Spec: &sandbox.Spec{Limits: sandbox.Limits{Memory: memory}}}}
	}
	_, opened, err := k.Trusted.Open(t.Context(), "work", with(256<<20))
	if err != nil || !opened.New || opened.Spec.Limits.Memory != 256<<20 {
		t.Fatalf("a new session: %+v, %v", opened, err)
	}
	_, again, err := k.Trusted.Open(t.Context(), "work", with(128<<20))
	if err != nil || again.New || again.ID != opened.ID || again.Spec.Limits.Memory != 256<<20 {
		t.Errorf("an existing session: %+v, %v", again, err)
	}
}

func TestFilesOfASession(t *testing.T) {
	k := servertest.New(t, server.Options{})
	s := open(t, k.Trusted, "work")
	ctx, f := t.Context(), s.Files()
	data := bytes.Repeat([]byte{0, 1, 0xff}, 100_000)
	info, err := f.Write(ctx, "/tmp/dir/\xffdata", bytes.NewReader(data), sandbox.WriteOptions{Parents: true, Mode: 0o640})
	if err != nil || info.Size != int64(len(data)) || info.Mode.Perm() != 0o640 || info.Path != "/tmp/dir/\xffdata" {
		t.Fatalf("%+v %v", info, err)
	}
	if got, err := f.ReadAll(ctx, "/tmp/dir/\xffdata"); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	var part bytes.Buffer
	if i, err := f.ReadRange(ctx, "/tmp/dir/\xffdata", 3, 4, &part); err != nil || !bytes.Equal(part.Bytes(), data[3:7]) || i.Size != int64(len(data)) {
		t.Errorf("%v %+v %v", part.Bytes(), i, err)
	}
	if _, err := f.Read(ctx, "/tmp/dir", io.Discard); v1.CodeOf(err) != v1.CodeFileIsDirectory {
		t.Errorf("%v", err)
	}
	if err := f.WriteAll(ctx, "/tmp/dir/\xffdata", nil, sandbox.WriteOptions{Exclusive: true}); v1.CodeOf(err) != v1.CodeFileExists {
		t.Errorf("%v", err)
	}
	if _, err := f.Write(ctx, "/tmp/half", io.MultiReader(strings.NewReader("half"), failing{}), sandbox.WriteOptions{}); err == nil {
		t.Error("a reader that failed went unnoticed")
	}
	if _, err := f.Stat(ctx, "/tmp/half"); v1.CodeOf(err) != v1.CodeFileNotFound {
		t.Errorf("half a file: %v", err)
	}
	below := f.Below("/tmp/dir")
	if err := below.WriteAll(ctx, "in", []byte("x"), sandbox.WriteOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := below.Stat(ctx, "/../../etc/hosts"); err == nil {
		t.Error("a confined access left its root")
	}
	if err := f.Mkdir(ctx, "/tmp/a/b", sandbox.MkdirOptions{Parents: true}); err != nil {
		t.Error(err)
	}
	if err := f.Move(ctx, "/tmp/dir/in", "/tmp/a/b/moved", sandbox.MoveOptions{Exclusive: true}); err != nil {
		t.Error(err)
	}
	var paths []string
	for i, err := range f.List(ctx, "/tmp/a", sandbox.ListOptions{Recursive: true}) {
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, i.Path)
	}
	if strings.Join(paths, " ") != "/tmp/a/b /tmp/a/b/moved" {
		t.Errorf("got %v", paths)
	}
	var arch bytes.Buffer
	st, err := f.Download(ctx, &arch, "/tmp/a")
	if err != nil || st.Entries == 0 {
		t.Fatalf("%+v %v", st, err)
	}
	if _, err := tar.NewReader(bytes.NewReader(arch.Bytes())).Next(); err != nil {
		t.Error(err)
	}
	if st, err := f.Upload(ctx, "/tmp/copy", &arch, sandbox.TarOptions{Parents: true}); err != nil || st.Bytes != 1 {
		t.Errorf("%+v %v", st, err)
	}
	if err := f.Remove(ctx, "/tmp/a", sandbox.RemoveOptions{Recursive: true}); err != nil {
		t.Error(err)
	}
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	seen := false
	err = f.Watch(wctx, "/tmp", sandbox.WatchOptions{}, func(e sandbox.FileEvent) error {
		if e.Op == "ready" {
			return f.WriteAll(ctx, "/tmp/seen", nil, sandbox.WriteOptions{})
		}
		if e.Path == "/tmp/seen" {
			seen = true
			cancel()
		}
		return nil
	})
	if !seen || v1.CodeOf(err) != v1.CodeCancelled {
		t.Errorf("%v %v", seen, err)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errBroken }

func TestSessionsOfOneNameAreAllListed(t *testing.T) {
	k := servertest.New(t, server.Options{})
	s, _, err := k.Manager.Open(t.Context(), session.Key{Name: "dup"}, session.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.End(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	st := k.Store
	rows, err := st.FindSessions(t.Context(), store.SessionQuery{ID: s.ID()})
	if err != nil || len(rows) != 1 {
		t.Fatal(rows, err)
	}
	const others = 1500 // more than one page
	var more []store.Session
	for i := range others {
		row := rows[0]
		row.ID = fmt.Sprintf("%s%04d", s.ID(), i)
		row.Data = bytes.ReplaceAll(row.Data, []byte(s.ID()), []byte(row.ID))
		more = append(more, row)
	}
	if err := st.SaveSessions(t.Context(), more...); err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[int]int{0: others + 1, 1200: 1200} {
		seen := map[string]bool{}
		for i, err := range k.Trusted.List(t.Context(), session.ListOptions{States: []session.State{v1.StateEnded}, Limit: limit}) {
			if err != nil {
				t.Fatal(err)
			}
			seen[i.ID] = true
		}
		if len(seen) != want {
			t.Errorf("with limit %d there are %d of %d", limit, len(seen), want)
		}
	}
}
