package fifo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// errName takes what a guest and those who start it write to standard error. Nobody reads it unless something failed: the kernel's
// 64 KiB are all that a hostile guest can make us keep.
const errName = "err"

// pendingLimit bounds what is read of it.
const pendingLimit = 8 << 10

// MakeAll is Make with a pipe for the guest's standard error too.
func MakeAll(dir string) (*Ends, error) {
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

// Complaints gives what waits in the error pipe of dir, without waiting for more.
func Complaints(dir string) string {
	fd, err := unix.Open(filepath.Join(dir, errName), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return ""
	}
	defer func() { _ = unix.Close(fd) }()
	buf := make([]byte, pendingLimit)
	n, _ := unix.Read(fd, buf)
	return strings.TrimSpace(string(buf[:max(n, 0)]))
}

// Complaints gives what waits in the error pipe.
func (e *Ends) Complaints() string { return Complaints(filepath.Dir(e.Err.Name())) }

// makeEnd creates a pipe and opens it as the guest does.
func makeEnd(path string) (*os.File, error) {
	if err := unix.Mkfifo(path, 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("named pipe %s: %w", path, err)
	}
	// Not os.OpenFile: that would make the open file description, which the guest shares, non-blocking.
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("named pipe %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}
