package daemon

import (
	"bytes"
	"context"
	"os"
	"time"
)

// lockPoll is how often a lock that somebody holds is tried again.
const lockPoll = 10 * time.Millisecond

// lock is a file that one process at a time holds. The kernel gives it up when the process ends, however it ends.
type lock struct{ file *os.File }

// tryLock gives nil, and no error, when somebody else holds it.
func tryLock(path string) (*lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	ok, err := flock(f)
	if err != nil || !ok {
		f.Close()
		return nil, err
	}
	return &lock{file: f}, nil
}

// waitLock waits until the lock is free or ctx ends.
func waitLock(ctx context.Context, path string) (*lock, error) {
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		l, err := tryLock(path)
		if l != nil || err != nil {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// free reports whether nobody holds the lock.
func free(path string) (bool, error) {
	l, err := tryLock(path)
	if err != nil || l == nil {
		return false, err
	}
	l.release()
	return true, nil
}

// write makes content, which is JSON, that of the file. Others read it without a lock, so it is never cut short first: blanks cover what was
// longer.
func (l *lock) write(content []byte) error {
	fi, err := l.file.Stat()
	if err != nil {
		return err
	}
	if more := int(fi.Size()) - len(content); more > 0 {
		content = append(bytes.Clone(content), bytes.Repeat([]byte(" "), more)...)
	}
	_, err = l.file.WriteAt(content, 0)
	return err
}

func (l *lock) release() { l.file.Close() }
