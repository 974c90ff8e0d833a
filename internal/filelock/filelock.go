// Package filelock locks files between processes. The kernel releases a lock when its holder dies.
//
// It wraps github.com/gofrs/flock, so that a held lock has its own error, and waiting for a lock can be cancelled.
package filelock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gofrs/flock"
)

// pollInterval is the time between two attempts to take a held lock.
const pollInterval = 10 * time.Millisecond

// ErrHeld means that another process, or another Lock of this process, holds the lock.
var ErrHeld = errors.New("the lock is held")

// Lock is a lock that this process holds.
type Lock struct{ f *flock.Flock }

// Acquire takes the lock on the file at path, and creates the file if it is missing. It waits for another holder until
// ctx ends; the error then wraps ErrHeld and the cause. The last attempt is made after ctx has ended: a program that
// was not scheduled during all that time must not report a holder that it never saw.
func Acquire(ctx context.Context, path string) (*Lock, error) {
	f := flock.New(path)
	for {
		last := ctx.Err() != nil
		ok, err := f.TryLock()
		switch {
		case ok || err != nil:
			return newLock(f, err)
		case last:
			return newLock(f, fmt.Errorf("%w: %w", ErrHeld, context.Cause(ctx)))
		}
		select {
		case <-ctx.Done():
		case <-time.After(pollInterval):
		}
	}
}

// Try takes the lock on the file at path, and creates the file if it is missing. It fails with ErrHeld if the lock is
// held.
func Try(path string) (*Lock, error) { return try(flock.New(path)) }

// TryDir is Try for an existing directory. It works only on unix systems.
func TryDir(dir string) (*Lock, error) { return try(flock.New(dir, flock.SetFlag(os.O_RDONLY))) }

// TryShared takes a shared lock on the existing file at path. It fails with ErrHeld only while the lock is held
// exclusively. It is for callers that check whether the lock is held: they do not appear as holders to each other.
func TryShared(path string) (*Lock, error) {
	f := flock.New(path, flock.SetFlag(os.O_RDONLY))
	return tryWith(f, f.TryRLock)
}

// Held reports whether the lock on the file at path is held elsewhere. It creates the file if it is missing.
func Held(path string) (bool, error) {
	l, err := Try(path)
	if err != nil {
		if errors.Is(err, ErrHeld) {
			err = nil
		}
		return err == nil, err
	}
	l.Release()
	return false, nil
}

func try(f *flock.Flock) (*Lock, error) { return tryWith(f, f.TryLock) }

func tryWith(f *flock.Flock, try func() (bool, error)) (*Lock, error) {
	ok, err := try()
	if err == nil && !ok {
		err = ErrHeld
	}
	return newLock(f, err)
}

func newLock(f *flock.Flock, err error) (*Lock, error) {
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", f.Path(), err)
	}
	return &Lock{f}, nil
}

// Release releases the lock. It unlocks explicitly before it closes the file: closing alone does not unlock while a
// process that is being forked has a copy of the descriptor. A second Release does nothing.
func (l *Lock) Release() { _ = l.f.Unlock() }
