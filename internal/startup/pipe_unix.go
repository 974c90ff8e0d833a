//go:build unix

package startup

import (
	"os"
	"syscall"
)

// output gives a copy of stdout or stderr. Go ends a program by a signal when nobody reads these two any more; on a copy that is an error, so
// that the call is blocked. (Package os/signal would do, but it comes behind many others.)
func output(f *os.File) *os.File {
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		return f // it is not open: writing to it fails as well
	}
	return os.NewFile(uintptr(fd), f.Name())
}
