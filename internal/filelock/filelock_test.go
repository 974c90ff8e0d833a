//go:build unix

package filelock

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestALockHasOneHolder(t *testing.T) {
	dir := t.TempDir()
	for name, try := range map[string]func() (*Lock, error){
		"file":      func() (*Lock, error) { return Try(filepath.Join(dir, "lock")) },
		"directory": func() (*Lock, error) { return TryDir(dir) },
	} {
		first, err := try()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := try(); !errors.Is(err, ErrHeld) {
			t.Errorf("%s: a held lock was taken again: %v", name, err)
		}
		first.Release()
		first.Release()
		second, err := try()
		if err != nil {
			t.Fatalf("%s: a released lock could not be taken: %v", name, err)
		}
		second.Release()
	}
}

func TestAcquireWaits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := Try(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*pollInterval)
	defer cancel()
	if _, err := Acquire(ctx, path); !errors.Is(err, ErrHeld) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after the end of ctx: %v", err)
	}
	time.AfterFunc(3*pollInterval, first.Release)
	second, err := Acquire(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	second.Release()
}

func TestAcquireTriesAfterItsContextHasEnded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	first, err := Acquire(ctx, path)
	if err != nil {
		t.Fatalf("a free lock: %v", err)
	}
	defer first.Release()
	if _, err := Acquire(ctx, path); !errors.Is(err, ErrHeld) || !errors.Is(err, context.Canceled) {
		t.Errorf("a held lock: %v", err)
	}
}

func TestNoPlaceForALock(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	if _, err := TryDir(none); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if _, err := Try(filepath.Join(none, "lock")); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrHeld) {
		t.Errorf("%v", err)
	}
}
