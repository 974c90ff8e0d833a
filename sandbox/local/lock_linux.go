package local

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/sandbox"
)

// lock is held by whoever is attached to a sandbox. The kernel gives it back when its holder dies.
type lock struct{ file *os.File }

// acquire takes the lock, or says who has it.
func acquire(dir string) (*lock, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeNotFound, Op: "attach", Message: "the sandbox has gone", Err: err}
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = errors.Join(f.Truncate(0), write(f, strconv.Itoa(os.Getpid())))
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		holder, _ := io.ReadAll(io.LimitReader(f, 32)) // a message without it is still one
		_ = f.Close()
		return nil, &sandbox.Error{
			Code: sandbox.CodeBusy, Op: "attach", Retry: true,
			Message: fmt.Sprintf("process %s is attached to the sandbox", strings.TrimSpace(string(holder))), Remedy: "end that process, or wait until it lets go",
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, &sandbox.Error{Code: sandbox.CodeInternal, Op: "attach", Message: "the sandbox's lock", Err: err}
	}
	return &lock{file: f}, nil
}

func write(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

// release gives it back explicitly: closing alone would not, while a process that is just being
// forked still has a copy of the descriptor.
func (l *lock) release() {
	_ = unix.Flock(int(l.file.Fd()), unix.LOCK_UN)
	_ = l.file.Close()
}
