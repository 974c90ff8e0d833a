//go:build unix

package daemon

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// flock takes the lock, or says that somebody else has it.
func flock(f *os.File) (bool, error) {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		}
		return err == nil, err
	}
}

// detached makes a process that neither our terminal nor our end reaches.
func detached() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
