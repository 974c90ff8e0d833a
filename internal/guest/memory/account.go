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

// killCounters are where a cgroup counts the processes that the host's kernel has killed for memory, in version 2 and 1. Only where the
// processes of a sandbox are that kernel's own, as in a container, is there one to read.
var killCounters = []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"}

// killedStatus is the exit status of a shell whose last command was killed.
const killedStatus = 128 + int(syscall.SIGKILL)

// killCounter returns the counter that this sandbox has, or "". It is looked for once: every operation asks.
var killCounter = sync.OnceValue(func() string {
	if os.Getpid() != 1 {
		return "" // then the cgroup may not be ours alone
	}
	for _, path := range killCounters {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
})

// kernelKills counts the processes of our cgroup that the kernel has killed for memory; 0 where there is no counter.
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

// Account counts the processes of one operation that were killed for memory, by the Enforcer or by the kernel.
type Account struct {
	counted func() int64 // kernelKills
	before  int64        // what it returned when the operation began
	shared  atomic.Bool  // another operation ran for a part of its time

	mu    sync.Mutex
	main  int   // guarded by mu; pid of the main process, 0 while it is unknown
	early int   // guarded by mu; the last process that was killed while main was unknown
	kills int64 // guarded by mu
	over  bool  // guarded by mu; the main process was killed for memory
}

// Open begins the account of an operation.
func (a *Account) Open() { a.open(kernelKills) }

func (a *Account) open(counted func() int64) { a.counted, a.before = counted, counted() }

// Share records that another operation runs at the same time. Kills that the kernel has counted can then be either's.
func (a *Account) Share() { a.shared.Store(true) }

// SetMain names the main process.
func (a *Account) SetMain(pid int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.main = pid
	a.over = a.over || pid != 0 && a.early == pid
}

// Restart names the main process of a second attempt: what befell the one before does not count.
func (a *Account) Restart(pid int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.main, a.over = pid, false
}

// Killed records that the Enforcer has killed a process of the operation.
func (a *Account) Killed(pid int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.kills++
	a.over = a.over || a.main == pid
	if a.main == 0 {
		a.early = pid
	}
}

// Judge tells a kill for memory from another one by how the main process ended: the kernel has killed a process since the operation
// began, and the main process, or the command that its shell waited for, was killed. requested says that the caller asked for SIGKILL.
func (a *Account) Judge(ws syscall.WaitStatus, requested bool) {
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
	a.over = a.over || killed && !requested
}

// MainKilled reports that the main process was killed for memory.
func (a *Account) MainKilled() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.over
}

// Kills returns how many processes of the operation were killed for memory. Those that the kernel has counted were this operation's
// only if no other ran beside it. A process that merely rested, such as an interpreter between two cells, cannot be told apart; the
// kernel is made to choose commands first.
func (a *Account) Kills() int64 {
	var alone int64
	if !a.shared.Load() {
		alone = max(a.counted()-a.before, 0)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return max(a.kills, alone)
}
