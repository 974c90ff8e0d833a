package statefile

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/recluse-dev/recluse/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestARecordIsReplacedAsAWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "record.json")
	for _, want := range []string{strings.Repeat("long", 1000), "short"} {
		if err := Write(path, want); err != nil {
			t.Fatal(err)
		}
		var got string
		if err := Read(path, &got); err != nil || got != want {
			t.Fatalf("read %.20q, %v", got, err)
		}
	}
	if err := Write(path, func() {}); err == nil {
		t.Error("a function was written")
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("beside the record: %v, %v", left, err)
	}
}

func TestALockNamesItsHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	l, err := Acquire(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Acquire(path, 0)
	if sandbox.CodeOf(err) != sandbox.CodeBusy || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("a lock that is held: %v", err)
	}
	l.Release()
	l, err = Acquire(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	l.Release()
	if _, err := Acquire(filepath.Join(path, "none"), 0); err == nil || errors.As(err, new(*sandbox.Error)) {
		t.Errorf("a lock in no directory: %v", err)
	}
}

func TestAnOwnerIsOneProcess(t *testing.T) {
	o := Self()
	if !o.Alive() {
		t.Error("we are dead")
	}
	o.Start++
	if o.Alive() {
		t.Error("another process of our pid is taken for it")
	}
}
