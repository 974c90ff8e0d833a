package audit

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/recluse-dev/recluse/internal/store"
)

func TestSpool(t *testing.T) {
	dir := t.TempDir()
	reopen := func(mark int64) (*spool, []spooled) {
		t.Helper()
		s, left, err := openSpool(dir, mark)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.close() })
		return s, left
	}
	s, _ := reopen(7)
	s.add(store.Entry{Action: "a"})
	mark := s.seal()
	s.add(store.Entry{Action: "b"}) // while a is being written
	again := s.seal()               // the write has failed: neither file is empty
	s.add(store.Entry{Action: "c"})
	if mark != 8 || again != 9 || s.last != 10 {
		t.Errorf("marks %d and %d, last %d", mark, again, s.last)
	}
	if _, left := reopen(mark); len(left) != 2 || left[0].N != 9 || left[1].Entry.Action != "c" {
		t.Errorf("lines after %d: %+v", mark, left)
	}
	if err := s.drop(); err != nil { // removes only a: c is newer than the mark of b
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, spoolFiles[1]), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"n":11,"entry":{"Act`); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	next, left := reopen(0)
	if len(left) != 2 || left[0].Entry.Action != "b" || next.last != 10 {
		t.Errorf("left: %+v, last %d", left, next.last)
	}
}

func TestASpoolThatCannotBeOpenedSaysWhy(t *testing.T) {
	for _, name := range spoolFiles { // if the second file fails, the first must be closed
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
				t.Fatal(err)
			}
			_, _, err := openSpool(dir, 0)
			if path := (*fs.PathError)(nil); !errors.As(err, &path) || filepath.Base(path.Path) != name {
				t.Errorf("got %v", err)
			}
		})
	}
}

// BenchmarkSpool measures the cost of an entry for its caller, besides the work in memory.
func BenchmarkSpool(b *testing.B) {
	s, _, err := openSpool(b.TempDir(), 0)
	if err != nil {
		b.Fatal(err)
	}
	defer s.close()
	e := store.Entry{Tenant: "default", Session: "work", Actor: "ann", Action: "cell", Detail: "1+1", Digest: "0123456789abcdef", Op: "c-1", Verdict: "exit status 0"}
	for b.Loop() {
		if s.add(e); s.sizes[0] > 1<<20 {
			if err := s.empty(0); err != nil {
				b.Fatal(err)
			}
		}
	}
}
