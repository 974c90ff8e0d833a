//go:build linux

package memory

import (
	"bytes"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
)

// killCounters are the files in which a cgroup counts OOM kills by the host's kernel, in versions 2 and 1. They exist
// only where the processes of a sandbox are processes of that kernel, as in a container.
var killCounters = []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"}

// killedStatus is the exit status of a shell whose last command was killed.
const killedStatus = 128 + int(syscall.SIGKILL)

// killCounter returns the counter of this sandbox, or "". The result is cached, because every operation needs it.
var killCounter = sync.OnceValue(func() string {
	if os.Getpid() != 1 {
		return "" // the cgroup may contain other processes
	}
	for _, path := range killCounters {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
})

// kernelKills returns the number of processes of our cgroup that the kernel has OOM-killed; 0 if there is no counter.
func kernelKills() int64 {
	path := killCounter()
	if path == "" {
		return 0
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	return parseKills(text)
}

func parseKills(text []byte) int64 {
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
			n, err := strconv.ParseInt(string(bytes.TrimSpace(rest)), 10, 64)
			if err == nil {
				return n
			}
		}
	}
	return 0
}

// Account counts the processes of one operation that were OOM-killed, by the Enforcer or by the kernel.
type Account struct {
	counted func() int64 // kernelKills
	before  int64        // result of counted when the operation began
	shared  atomic.Bool  // another operation ran for a part of its time

	mu         sync.Mutex
	main       int   // guarded by mu; pid of the main process, 0 while it is unknown
	earlyKill  int   // guarded by mu; the last process that was killed while main was unknown
	kills      int64 // guarded by mu
	mainKilled bool  // guarded by mu; the main process was OOM-killed
}

// Open starts the account of an operation.
func (a *Account) Open() { a.open(kernelKills) }

func (a *Account) open(counted func() int64) { a.counted, a.before = counted, counted() }

// Share records that another operation runs at the same time. Then kills that the kernel has counted may belong to
// either.
func (a *Account) Share() { a.shared.Store(true) }

// SetMain sets the pid of the main process.
func (a *Account) SetMain(pid int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.main = pid
	a.mainKilled = a.mainKilled || pid != 0 && a.earlyKill == pid
}

// Restart sets the main process of a second attempt. A kill of the previous main process no longer counts as one.
func (a *Account) Restart(pid int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.main, a.mainKilled = pid, false
}

// Killed records that the Enforcer has killed a process of the operation.
func (a *Account) Killed(pid int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.kills++
	a.mainKilled = a.mainKilled || a.main == pid
	if a.main == 0 {
		a.earlyKill = pid
	}
}

// RecordExit decides from the exit status of the main process whether it was OOM-killed by the kernel: the kernel has
// killed a process since the operation began, and the main process, or the command that its shell waited for, was
// killed. requested means that the caller has requested SIGKILL.
func (a *Account) RecordExit(ws syscall.WaitStatus, requested bool) {
	killed := ws.Signaled() && ws.Signal() == syscall.SIGKILL
	if !killed && ws.ExitStatus() != killedStatus {
		return
	}
	n := a.counted() - a.before
	if n <= 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.kills = max(a.kills, n)
	a.mainKilled = a.mainKilled || killed && !requested
}

// MainKilled reports whether the main process was OOM-killed.
func (a *Account) MainKilled() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mainKilled
}

// Kills returns the number of processes of the operation that were OOM-killed. Kills that the kernel has counted are
// attributed to this operation only if no other one ran at the same time. Kills of waiting processes, such as an
// interpreter between two cells, cannot be distinguished; oom_score_adj makes the kernel prefer commands.
func (a *Account) Kills() int64 {
	var alone int64
	if !a.shared.Load() {
		alone = max(a.counted()-a.before, 0)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return max(a.kills, alone)
}
