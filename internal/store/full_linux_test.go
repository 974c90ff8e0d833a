package store

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
)

// tinyDisk returns a directory on a small file system of its own.
func tinyDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m,mode=700"); err != nil {
		testneed.Lacking(t, "a full disk needs a file system of its own:", err)
	}
	t.Cleanup(func() { must(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	return dir
}

// fill uses all space of a disk until free is called.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	must(t, err)
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	return func() { must(t, os.Remove(path)) }
}

func TestAFullDisk(t *testing.T) {
	t.Parallel()
	dir := tinyDisk(t)
	s, ctx := open(t, dir), t.Context()
	old := Session{ID: "a", Tenant: "t", Name: "a", State: "ready", Live: true, Data: []byte("{}")}
	must(t, s.SaveSessions(ctx, old))
	must(t, s.AddSnapshot(ctx, Snapshot{ID: "1", Tenant: "t", Session: "a", Name: "x", Image: "g/1", Data: []byte("{}")}))
	free := fill(t, dir)
	big := bytes.Repeat([]byte("x"), 64<<10) // larger than the space that the write-ahead log already has
	next := old
	next.ID, next.Name, next.Data = "b", "b", big
	for what, f := range map[string]func() error{
		"a session": func() error { return s.SaveSessions(ctx, next) },
		"a snapshot": func() error {
			return s.AddSnapshot(ctx, Snapshot{ID: "2", Tenant: "t", Session: "a", Name: "y", Image: "g/2", Data: big})
		},
		"variables": func() error { return s.SetVars(ctx, "a", map[string]string{"v": string(big)}) },
		"the log": func() error {
			return s.Append(ctx, Batch{Events: []Event{{Session: "a", Seq: 1, Data: big}}, Entries: []Entry{{Tenant: "t", Detail: string(big)}}})
		},
		"a key": func() error { return s.AddKey(ctx, APIKey{ID: "k", Name: string(big), Tenant: "t", Hash: []byte("h")}) },
		"a token": func() error {
			return s.AddToken(ctx, Token{ID: "k", Name: string(big), Tenant: "t", Hash: []byte("h")})
		},
		"an answer": func() error {
			_, _, err := s.BeginReply(ctx, Reply{Tenant: "t", Key: "k", Request: big})
			return err
		},
	} {
		if err := f(); v1.CodeOf(err) != v1.CodeDiskFull {
			t.Errorf("%s: %v", what, err)
		}
	}
	found, err := s.FindSessions(ctx, SessionQuery{Tenant: "t"})
	if err != nil || len(found) != 1 || found[0].ID != "a" {
		t.Errorf("sessions on a full disk: %+v, %v", found, err)
	}
	free()
	must(t, s.SaveSessions(ctx, next))
	must(t, s.Close())
	s = open(t, dir)
	found, err = s.FindSessions(ctx, SessionQuery{Tenant: "t"})
	must(t, err)
	snapshots, err := s.FindSnapshots(ctx, SnapshotQuery{Tenant: "t"})
	must(t, err)
	entries, err := s.Entries(ctx, EntryQuery{Tenant: "t"})
	must(t, err)
	if len(found) != 2 || len(snapshots) != 1 || len(entries) != 0 {
		t.Errorf("%d sessions, %d snapshots, %d entries", len(found), len(snapshots), len(entries))
	}
}

func TestOpeningOnAFullDisk(t *testing.T) {
	t.Parallel()
	t.Run("a new store", func(t *testing.T) {
		dir := tinyDisk(t)
		free := fill(t, dir)
		if _, err := OpenSQLite(t.Context(), dir); v1.CodeOf(err) != v1.CodeDiskFull {
			t.Errorf("got %v", err)
		}
		free()
		open(t, dir)
	})
	t.Run("one that is there", func(t *testing.T) {
		dir := tinyDisk(t)
		s := open(t, dir)
		for i := range 20 {
			must(t, s.SaveSessions(t.Context(), Session{ID: strconv.Itoa(i), Tenant: "t", Name: strconv.Itoa(i), Live: true, Data: bytes.Repeat([]byte("x"), 500)}))
		}
		must(t, s.Close())
		before, err := os.ReadFile(filepath.Join(dir, File))
		must(t, err)
		free := fill(t, dir)
		if _, err := OpenSQLite(t.Context(), dir); v1.CodeOf(err) != v1.CodeDiskFull {
			t.Errorf("got %v", err)
		}
		after, err := os.ReadFile(filepath.Join(dir, File))
		must(t, err)
		if !bytes.Equal(before, after) {
			t.Error("the file was changed")
		}
		free()
		found, err := open(t, dir).FindSessions(t.Context(), SessionQuery{Tenant: "t"})
		if err != nil || len(found) != 20 {
			t.Errorf("%d sessions, %v", len(found), err)
		}
	})
}
