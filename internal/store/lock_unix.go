//go:build unix

package store

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A lock that was just given up may still be held by a process that its holder starts at that moment, between its fork and its exec.
const (
	lockPatience = 300 * time.Millisecond
	lockPause    = 10 * time.Millisecond
)

// flock takes the lock on f and says whether it got it.
func flock(f *os.File) (bool, error) {
	for end := time.Now().Add(lockPatience); ; time.Sleep(lockPause) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EWOULDBLOCK) && time.Now().After(end):
			return false, nil
		case !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EWOULDBLOCK):
			return false, &os.PathError{Op: "flock", Path: f.Name(), Err: err}
		}
	}
}
