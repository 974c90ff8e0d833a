package store

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// lockAt lies behind the content, which others must be able to read.
const lockAt = 1 << 20

// flock takes the lock on f and says whether it got it.
func flock(f *os.File) (bool, error) {
	flags := uint32(windows.LOCKFILE_FAIL_IMMEDIATELY | windows.LOCKFILE_EXCLUSIVE_LOCK)
	err := windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, &windows.Overlapped{Offset: lockAt})
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		return false, nil
	}
	if err != nil {
		return false, &os.PathError{Op: "lock", Path: f.Name(), Err: err}
	}
	return true, nil
}
