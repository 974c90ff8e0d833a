//go:build unix

package rlm

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

const (
	lockFile = "lock"
	// lookWait is how long those who only look at a run may be in the way of one who wants to work on it. Each has it for a moment.
	lookWait = 10 * time.Second
	lookPoll = 5 * time.Millisecond
)

// lockRun makes this program the one that works on a run. The lock goes with the program, however it ends.
func lockRun(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, &v1.Error{Code: v1.CodeInternal, Op: "lock run", Err: err}
	}
	for end := time.Now().Add(lookWait); ; time.Sleep(lookPoll) {
		if err = flock(f, unix.LOCK_EX); err == nil {
			return func() { release(f) }, nil
		}
		// One who works lets nobody share; those who look do.
		if flock(f, unix.LOCK_SH) != nil || time.Now().After(end) {
			break
		}
		_ = unix.Flock(int(f.Fd()), unix.LOCK_UN) // or two who wait would wait for each other
	}
	release(f)
	return nil, &v1.Error{Code: v1.CodeBusy, Op: "lock run", Message: "a program is working on this run", Remedy: "wait for its end, or stop it", Retry: true, Err: err}
}

// running says that a program works on a run now. Any number may look at once.
func running(dir string) bool {
	f, err := os.Open(filepath.Join(dir, lockFile))
	if err != nil {
		return false // nobody ever has
	}
	defer release(f)
	return flock(f, unix.LOCK_SH) != nil
}

// flock takes a lock if it is free.
func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// release gives a lock back, also when a process that is just being forked still has a copy of the descriptor.
func release(f *os.File) {
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
	_ = f.Close()
}
