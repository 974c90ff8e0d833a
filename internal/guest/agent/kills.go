//go:build linux

package agent

import (
	"bytes"
	"os"
	"strconv"
	"sync"
	"syscall"
)

// Where processes of the sandbox are the host kernel's own, as in a container, that kernel kills for memory, and says so in
// nothing but a counter of our cgroup. Elsewhere (gVisor, a plain process) there is no counter of our own to be read, and memory.go
// notes whom we have killed ourselves.
var killCounters = []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"}

// killedStatus is how a shell tells that the command it waited for was killed.
const killedStatus = 128 + int(syscall.SIGKILL)

// killCounter is the one that this sandbox has, or "". It is looked for once: every operation asks.
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

// kernelKills counts processes of our cgroup that the kernel has killed for memory; 0 where that is not told.
func kernelKills() int64 {
	path := killCounter()
	if path == "" {
		return 0
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
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

// judge tells a kill for memory from another one: the kernel has killed somebody since the operation began, and its main process, or what
// that waited for, was killed by nobody we know.
func (o *op) judge(ws syscall.WaitStatus) {
	killed := ws.Signaled() && ws.Signal() == syscall.SIGKILL
	if !killed && ws.ExitStatus() != killedStatus {
		return
	}
	n := kernelKills() - o.before
	if n <= 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kills = max(o.kills, n)
	o.oom = o.oom || killed && o.asked != int32(syscall.SIGKILL)
}

// ownKills is how many processes the kernel has killed for memory while no other operation ran, as far as it is known: they were this one's. With
// others beside it nobody can tell whose they were, but by the main process's end. Nor is told apart who only rested, such as an interpreter
// between two cells; the kernel is made to choose commands first.
func (o *op) ownKills() int64 {
	if o.beside.Load() {
		return 0
	}
	return max(kernelKills()-o.before, 0)
}
