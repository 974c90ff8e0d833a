package fifo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// errName is the name of the pipe for the standard error of a guest and of the programs that start it. It is read only
// after a failure: the kernel's buffer of 64 KiB bounds what a hostile guest can make us store.
const errName = "err"

// pendingLimit bounds how much of it is read.
const pendingLimit = 8 << 10

// MakeWithStderr is Make with an additional pipe for the guest's standard error.
func MakeWithStderr(dir string) (*Ends, error) {
	e, err := Make(dir)
	if err != nil {
		return nil, err
	}
	if e.Err, err = makeEnd(filepath.Join(dir, errName)); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// PendingStderr returns the data in the error pipe of dir, without waiting for more.
func PendingStderr(dir string) string {
	fd, err := unix.Open(filepath.Join(dir, errName), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return ""
	}
	defer func() { _ = unix.Close(fd) }()
	buf := make([]byte, pendingLimit)
	n, _ := unix.Read(fd, buf)
	return strings.TrimSpace(string(buf[:max(n, 0)]))
}

// PendingStderr returns the data in the error pipe.
func (e *Ends) PendingStderr() string { return PendingStderr(filepath.Dir(e.Err.Name())) }

// makeEnd creates a pipe and opens it for reading and writing, as the guest uses it.
func makeEnd(path string) (*os.File, error) {
	if err := unix.Mkfifo(path, 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("named pipe %s: %w", path, err)
	}
	// Not os.OpenFile: it would make the open file description, which the guest shares, non-blocking.
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("named pipe %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}
