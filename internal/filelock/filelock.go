// Package filelock locks files between processes. The kernel releases a lock when its holder dies.
//
// It wraps github.com/gofrs/flock, so that a lock that is held is an error of its own, and one that is
// waited for can be given up.
package filelock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gofrs/flock"
)

// poll is how often a held lock is tried again.
const poll = 10 * time.Millisecond

// ErrHeld says that another process, or another Lock of this one, holds the lock.
var ErrHeld = errors.New("the lock is held")

// Lock is a lock that this process holds.
type Lock struct{ f *flock.Flock }

// Acquire takes the lock on the file at path, which it creates. It waits for another holder until ctx ends; the error
// then wraps ErrHeld and the cause. The last attempt is made after ctx has ended: a program that was not scheduled for
// all of that time must not report a holder that it never saw.
func Acquire(ctx context.Context, path string) (*Lock, error) {
	f := flock.New(path)
	for {
		last := ctx.Err() != nil
		ok, err := f.TryLock()
		switch {
		case ok || err != nil:
			return lock(f, err)
		case last:
			return lock(f, fmt.Errorf("%w: %w", ErrHeld, context.Cause(ctx)))
		}
		select {
		case <-ctx.Done():
		case <-time.After(poll):
		}
	}
}

// Try takes the lock on the file at path, which it creates, or fails with ErrHeld.
func Try(path string) (*Lock, error) { return try(flock.New(path)) }

// TryDir is Try for a directory, which must exist. It is for unix systems only.
func TryDir(dir string) (*Lock, error) { return try(flock.New(dir, flock.SetFlag(os.O_RDONLY))) }

// TryShared takes a shared lock on the file at path, which must exist. It fails with ErrHeld only while another holds the
// lock exclusively: it serves those who want to know whether the lock is held, and must not be taken for a holder by one another.
func TryShared(path string) (*Lock, error) {
	f := flock.New(path, flock.SetFlag(os.O_RDONLY))
	return taken(f, f.TryRLock)
}

// Held reports whether another holds the lock on the file at path, which it creates.
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

func try(f *flock.Flock) (*Lock, error) { return taken(f, f.TryLock) }

func taken(f *flock.Flock, try func() (bool, error)) (*Lock, error) {
	ok, err := try()
	if err == nil && !ok {
		err = ErrHeld
	}
	return lock(f, err)
}

func lock(f *flock.Flock, err error) (*Lock, error) {
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", f.Path(), err)
	}
	return &Lock{f}, nil
}

// Release releases the lock. It does so explicitly before it closes the file: closing alone would not,
// while a process that is just being forked has a copy of the descriptor. A second Release does nothing.
func (l *Lock) Release() { _ = l.f.Unlock() }
