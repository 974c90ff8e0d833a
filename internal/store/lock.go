package store

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// lockFile is locked by whoever has the data directory. Its content is for people.
const lockFile = "server.lock"

// lockDir takes the data directory. The lock goes with the process, however it ends.
func lockDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fileError("lock data directory", err)
	}
	held, err := flock(f)
	if err != nil {
		_ = f.Close()
		return nil, fileError("lock data directory", err)
	}
	if !held {
		who, _ := os.ReadFile(path) // only for the message
		_ = f.Close()
		return nil, &v1.Error{
			Code: v1.CodeDataLocked, Op: "lock data directory", Message: fmt.Sprintf("%s is in use by process %s", dir, strings.TrimSpace(string(who))),
			Remedy: "let that process do the work, end it, or use another data directory", Retry: true,
		}
	}
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0) // for people
	}
	return f, nil
}
