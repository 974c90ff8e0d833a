//go:build unix

package startup

import (
	"os"
	"syscall"
)

// output returns a duplicate of stdout or stderr. When the reader of these two is gone, Go ends a program with SIGPIPE.
// A write to a duplicate returns an error instead, so that the hook can block the call. (Package os/signal would also
// work, but it is initialised after many others.)
func output(f *os.File) *os.File {
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		return f // the file is not open, and writing to it fails, too
	}
	return os.NewFile(uintptr(fd), f.Name())
}
