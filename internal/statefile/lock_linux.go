package statefile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/proc"
	"github.com/recluse-dev/recluse/sandbox"
)

const (
	// Patience is how long a lock may still be held by a program that has just died: a process that it was starting at that moment
	// has a copy, between its fork and its exec.
	Patience = 300 * time.Millisecond
	// lockPoll is how often a lock that is held is tried again.
	lockPoll = 10 * time.Millisecond
)

// Lock is held by whoever is attached to a sandbox: two readers of one pipe would each get half. The kernel gives it back
// when its holder dies.
type Lock struct{ file *os.File }

// Acquire takes the lock. The error says who has it, with sandbox.CodeBusy, or is that of opening the file.
func Acquire(path string, patience time.Duration) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(patience); ; time.Sleep(lockPoll) {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || !time.Now().Before(end) {
			break
		}
	}
	if err == nil {
		_ = f.Truncate(0)
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0) // for people
		return &Lock{f}, nil
	}
	holder, _ := io.ReadAll(io.LimitReader(f, 32)) // a message without it is still one
	_ = f.Close()
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return nil, &sandbox.Error{
		Code: sandbox.CodeBusy, Op: "attach", Retry: true,
		Message: fmt.Sprintf("process %s is attached to the sandbox", strings.TrimSpace(string(holder))),
		Remedy:  "end that process, or let it do the work",
	}
}

// Release gives it back explicitly: closing alone would not, while a process that is just being
// forked still has a copy of the descriptor.
func (l *Lock) Release() {
	_ = unix.Flock(int(l.file.Fd()), unix.LOCK_UN)
	_ = l.file.Close()
}

// Owner is a process that must end a sandbox, told from later ones of the same pid by its start.
type Owner struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
}

// Self is this process.
func Self() Owner {
	p, _ := proc.Get(os.Getpid())
	return Owner{PID: os.Getpid(), Start: p.Start}
}

// Alive tells whether it is still there.
func (o Owner) Alive() bool {
	p, ok := proc.Get(o.PID)
	return ok && p.Start == o.Start && !p.Zombie
}
