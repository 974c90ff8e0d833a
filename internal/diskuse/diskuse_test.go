package diskuse

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLow(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		total, free int64
		low, full   bool
	}{
		{1000 * gib, 10 * gib, false, false},
		{1000 * gib, 10*gib - 1, true, false},
		{1000 * gib, gib - 1, true, true},
		{100 * gib, 5 * gib, false, false},
		{100 * gib, 4 * gib, true, false},
		{15 * gib, gib, false, false},
		{15 * gib, gib - 1, true, false},
		{1 * gib, gib / 9, false, false},
		{1 * gib, gib / 11, true, false},
		{1 * gib, 0, true, true},
	} {
		s := Space{c.total, c.free}
		if s.Low() != c.low || s.Full() != c.full {
			t.Errorf("%d of %d: low %t, full %t", c.free, c.total, s.Low(), s.Full())
		}
	}
}

func TestSharesBlocks(t *testing.T) {
	if shares, known := SharesBlocks(filepath.Join(t.TempDir(), "missing")); shares || known {
		t.Error("a missing directory shares blocks")
	}
	if shares, known := SharesBlocks("/dev/shm"); shares && known {
		t.Error("a file system in memory shares blocks")
	}
}

func TestTree(t *testing.T) {
	dir := t.TempDir()
	empty := Tree(dir)
	if err := os.WriteFile(filepath.Join(dir, "a"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	one := Tree(dir) - empty
	if one < 1<<20 || one > 2<<20 {
		t.Errorf("a file of 1 MiB takes %d bytes", one)
	}
	if err := os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	if two := Tree(dir) - empty; two != one {
		t.Errorf("with a second name it takes %d bytes", two)
	}
	if n := Tree(filepath.Join(dir, "missing")); n != 0 {
		t.Errorf("a missing file takes %d bytes", n)
	}
	if s, ok := Of(dir); ok && (s.Total <= 0 || s.Free > s.Total) {
		t.Errorf("%+v", s)
	}
}
