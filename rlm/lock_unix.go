//go:build unix

package rlm

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/sandbox"
)

// lockRun makes this program the one that works on a run. The lock goes with the program, however it ends.
func lockRun(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeInternal, Op: "lock run", Err: err}
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, &sandbox.Error{Code: sandbox.CodeBusy, Op: "lock run", Message: "a program is working on this run", Remedy: "wait for its end, or stop it", Err: err}
	}
	return func() { _ = f.Close() }, nil
}
