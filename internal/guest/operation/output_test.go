//go:build linux

package operation

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/recluse-dev/recluse/internal/guest/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fill writes all of data in random pieces.
func fill(s *Sink, data []byte) {
	for at := 0; at < len(data); {
		n := min(len(data)-at, 1+rand.IntN(5000))
		s.write(data[at : at+n])
		at += n
	}
}

func random(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

func TestASinkKeepsBothEndsAndCountsTheRest(t *testing.T) {
	for _, size := range []int{0, 1, 999, 1000, 1001, 1999, 2000, 2001, 5000, 100_000} {
		data := random(size)
		s := newSink(2000, 50_000, filepath.Join(t.TempDir(), "out"))
		fill(s, data)
		s.End()
		k := s.kept()
		if k.Produced != int64(size) {
			t.Fatalf("%d bytes: %d counted", size, k.Produced)
		}
		if size <= 2000 {
			if !bytes.Equal(k.Head, data) || len(k.Tail) != 0 || k.File != "" {
				t.Fatalf("%d bytes: not kept whole: %d + %d, file %q", size, len(k.Head), len(k.Tail), k.File)
			}
			continue
		}
		if !bytes.Equal(k.Head, data[:1000]) || !bytes.Equal(k.Tail, data[size-1000:]) {
			t.Fatalf("%d bytes: wrong ends", size)
		}
		file, err := os.ReadFile(k.File)
		if err != nil || !bytes.Equal(file, data[:min(size, 50_000)]) || k.FileBytes != int64(len(file)) {
			t.Fatalf("%d bytes: %d in the file, %v", size, len(file), err)
		}
	}
}

func TestASinkIsReadFromAnyOffset(t *testing.T) {
	data := random(30_000)
	s := newSink(2000, 20_000, filepath.Join(t.TempDir(), "out"))
	fill(s, data)
	s.End()
	for _, from := range []int64{0, 500, 1500, 19_999, 20_000, 25_000, 29_000, 29_999} {
		var got []byte
		var lost int64
		buf := make([]byte, 700)
		for off := from; ; {
			n, skipped := s.Read(t.Context(), buf, off, true)
			if n == 0 {
				break
			}
			lost += skipped
			off += skipped + int64(n)
			got = append(got, buf[:n]...)
		}
		if int64(len(got))+lost != 30_000-from || !bytes.HasSuffix(data, got[max(0, len(got)-1000):]) {
			t.Errorf("from %d: %d read, %d skipped", from, len(got), lost)
		}
		if from < 20_000 && lost != 9_000 {
			t.Errorf("from %d: %d skipped, want the 9000 between file and tail", from, lost)
		}
	}
}

func TestAReaderWaitsForMore(t *testing.T) {
	s := newSink(100, 1000, filepath.Join(t.TempDir(), "out"))
	got := make(chan string)
	go func() {
		buf := make([]byte, 10)
		n, _ := s.Read(t.Context(), buf, 0, true)
		got <- string(buf[:n])
		n, _ = s.Read(t.Context(), buf, 2, true)
		got <- string(buf[:n])
	}()
	s.write([]byte("hi"))
	if x := <-got; x != "hi" {
		t.Fatal(x)
	}
	select {
	case x := <-got:
		t.Fatalf("read %q before anything came", x)
	case <-time.After(20 * time.Millisecond):
	}
	s.End()
	if x := <-got; x != "" {
		t.Fatal(x)
	}
}

func TestOperationsAreForgottenOldestFirst(t *testing.T) {
	table := NewTable(t.TempDir())
	add := func(id string) *Operation {
		o, bad := table.Add(Request{ID: id, Kind: "command", Inline: 100, Spool: 100})
		if bad != nil {
			t.Fatal(bad)
		}
		return o
	}
	running := add("running")
	for i := range 3 * keepFinished {
		add("op" + string(rune('a'+i%26)) + string(rune('a'+i/26))).Finish(&wire.Verdict{})
	}
	if n := len(table.All()); n > keepFinished+2 {
		t.Errorf("%d operations are kept", n)
	}
	if o, bad := table.Get("running"); bad != nil || o != running {
		t.Error("a running operation was dropped")
	}
	if table.Forget("running") == nil {
		t.Error("a running operation was dropped by Forget")
	}
	for _, id := range []string{"", "../x", "a/b", "-a", "a b", string(make([]byte, 100))} {
		if _, bad := table.Add(Request{ID: id}); bad == nil {
			t.Errorf("id %q was accepted", id)
		}
	}
	if _, bad := table.Add(Request{ID: "running"}); bad == nil || bad.Code != "operation_exists" {
		t.Errorf("an id was accepted twice: %v", bad)
	}
}
