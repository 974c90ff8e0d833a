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
	// lookWait bounds how long programs that only look at a run can delay one that wants to work on it. Each has the lock for a moment.
	lookWait = 10 * time.Second
	lookPoll = 5 * time.Millisecond
)

// lockRun makes this program the one that works on a run. The lock ends with the program, however it ends.
func lockRun(dir string) (unlock func(), err error) {
	path := filepath.Join(dir, lockFile)
	for end := time.Now().Add(lookWait); ; time.Sleep(lookPoll) {
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
				Remedy:  "wait for its end, or stop it",
				Retry:   true,
				Err:     err,
			}
		}
	}
}

// running reports whether a program works on a run now. Any number may look at once.
func running(dir string) bool {
	l, err := filelock.TryShared(filepath.Join(dir, lockFile))
	if err != nil {
		return errors.Is(err, filelock.ErrHeld) // no file: nobody ever has
	}
	l.Release()
	return false
}
