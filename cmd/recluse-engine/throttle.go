//go:build linux

package main

import (
	"math"
	"runtime"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/marshal/primitive"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/usage"
)

const (
	// turnTime is how long a process that fills memory waits when little memory is left, so that the guest can check.
	// maxHold is the longest wait when no memory is left, and maxQueue the longest wait for a turn.
	turnTime, maxQueue, maxHold = 10 * time.Millisecond, time.Second, 30 * time.Second
)

// throttled returns a replacement for a call that makes a process, which copies pages from then on. The call waits
// while memory is short. Two kinds of processes do not wait: those of the guest, and threads and similar processes,
// which copy nothing.
func throttled(fn kernel.SyscallFn, name string) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		if !ofGuest(t) && copiesMemory(t, name, args) && !yieldToGuest(t) {
			return 0, nil, linuxerr.ERESTARTNOINTR
		}
		return fn(t, number, args)
	}
}

// guestUID is the uid of the guest where code may be root: privilege.UID in internal/guest/privilege, which the engine
// cannot import.
const guestUID = auth.KUID(math.MaxInt32)

// ofGuest reports whether a task belongs to the guest, which is root, or has an id of its own where code may be root.
func ofGuest(t *kernel.Task) bool {
	c := t.Credentials()
	return c.EffectiveKUID == guestUID ||
		c.EffectiveKUID == auth.RootKUID && c.UserNamespace == t.Kernel().RootUserNamespace()
}

// copiesMemory reports whether the new process has its own memory.
func copiesMemory(t *kernel.Task, name string, args arch.SyscallArguments) bool {
	flags := args[0].Uint64()
	switch name {
	case "fork":
		return true
	case "clone3":
		var first primitive.Uint64
		if _, err := first.CopyIn(t, args[0].Pointer()); err != nil {
			return false // the call will fail
		}
		flags = uint64(first)
	}
	return flags&linux.CLONE_VM == 0
}

// yieldToGuest gives the guest time to run. While memory is used up, it waits, but at most maxHold. It returns false if
// the process is killed, or if it has another signal while memory is used up: the guest may be stopping all processes.
func yieldToGuest(t *kernel.Task) bool {
	if !usedMoreThan(t, 3, 4) {
		runtime.Gosched() // else the guest would run only after the time slices of all processes that do the same
		return !t.Killed()
	}
	for began := time.Now(); time.Since(began) < maxHold; {
		if _, err := t.BlockWithTimeout(nil, true, nextTurn()); !linuxerr.Equals(linuxerr.ETIMEDOUT, err) {
			return !t.Killed() && !usedMoreThan(t, 1, 1)
		}
		if !usedMoreThan(t, 1, 1) {
			break
		}
	}
	return true
}

var (
	// lastTurn is the time of the last assigned turn, in nanoseconds since started.
	lastTurn atomic.Int64
	started  = time.Now()
)

// nextTurn assigns a turn to the caller and returns the time to wait for it, so that only one process continues in each
// turnTime. If all continued at once, they would use up the memory that the guest has just freed. Processes that were
// stopped in the queue leave their turns unused, so the wait is at most maxQueue.
func nextTurn() time.Duration {
	now := time.Since(started)
	for {
		last := lastTurn.Load()
		own := min(max(time.Duration(last), now)+turnTime, now+maxQueue)
		if lastTurn.CompareAndSwap(last, int64(own)) {
			return own - now
		}
	}
}

// usedMoreThan reports whether more than part/of of the machine's memory is used.
func usedMoreThan(t *kernel.Task, part, of uint64) bool {
	all := usage.MaximumTotalMemoryBytes
	known, total := usage.MemoryAccounting.Copy() // as of the last check by the guest
	used, err := t.Kernel().MemoryFile().TotalUsage()
	return err == nil && all > 0 && max(total, used+known.Mapped+known.System) > all/of*part
}
