package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/filelock"
)

const (
	// lockFile is locked by the program that uses the data directory. It contains the pid, for messages.
	lockFile = "server.lock"
	// lockWait bounds the wait for the lock. If the holder is killed while it starts a process, that process keeps the
	// lock from its fork to its exec.
	lockWait = 300 * time.Millisecond
)

// lockDir locks the data directory. The lock ends with the process, however it ends.
func lockDir(ctx context.Context, dir string) (*filelock.Lock, error) {
	path := filepath.Join(dir, lockFile)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockWait)
	defer cancel()
	l, err := filelock.Acquire(ctx, path)
	switch {
	case errors.Is(err, filelock.ErrHeld):
		pid, _ := os.ReadFile(path) // only for the message
		return nil, &v1.Error{
			Code:    v1.CodeDataLocked,
			Op:      "lock data directory",
			Message: fmt.Sprintf("%s is in use by process %s", dir, strings.TrimSpace(string(pid))),
			Remedy:  "use that process, end it, or use another data directory",
			Retry:   true,
		}
	case err != nil:
		return nil, fileError("lock data directory", err)
	}
	_ = os.WriteFile(path, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600) // only for the message above
	return l, nil
}
