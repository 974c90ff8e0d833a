//go:build unix

package rlm

import (
	"errors"
	"path/filepath"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/filelock"
)

const (
	lockFile = "lock"
	// lockWait bounds how long callers of running can delay lockRun. Each of them holds the lock only for a moment.
	lockWait = 10 * time.Second
	lockPoll = 5 * time.Millisecond
)

// lockRun locks a run, so that no other program works on it. The lock is released when the program ends, however it
// ends.
func lockRun(dir string) (unlock func(), err error) {
	path := filepath.Join(dir, lockFile)
	for end := time.Now().Add(lockWait); ; time.Sleep(lockPoll) {
		l, err := filelock.Try(path)
		if err == nil {
			return l.Release, nil
		}
		if !errors.Is(err, filelock.ErrHeld) {
			return nil, &v1.Error{Code: v1.CodeInternal, Op: "lock run", Err: err}
		}
		if running(dir) || time.Now().After(end) {
			return nil, &v1.Error{
				Code:    v1.CodeBusy,
				Op:      "lock run",
				Message: "a program is working on this run",
				Remedy:  "wait until the run ends, or stop it",
				Retry:   true,
				Err:     err,
			}
		}
	}
}

// running reports whether a program works on a run now. It takes a shared lock, so that concurrent calls do not disturb
// each other.
func running(dir string) bool {
	l, err := filelock.TryShared(filepath.Join(dir, lockFile))
	if err != nil {
		return errors.Is(err, filelock.ErrHeld) // no lock file: no program has ever worked on the run
	}
	l.Release()
	return false
}
