//go:build linux

package main

import (
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
	// breath is how long whoever fills memory waits when little is left, so that the guest can look; hold how long, at most, when none is.
	// queue is how long anybody waits for his turn.
	breath, queue, hold = 10 * time.Millisecond, time.Second, 30 * time.Second
)

// patient is a call that makes a process, which copies pages from then on. It waits when memory is scarce, but not for the guest, whose processes are
// root's, and not for threads and the like, which copy none.
func patient(fn kernel.SyscallFn, name string) kernel.SyscallFn {
	return func(t *kernel.Task, number uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		if t.Credentials().EffectiveKUID != auth.RootKUID && copies(t, name, args) && !breathe(t) {
			return 0, nil, linuxerr.ERESTARTNOINTR
		}
		return fn(t, number, args)
	}
}

// copies reports whether the new process has memory of its own.
func copies(t *kernel.Task, name string, args arch.SyscallArguments) bool {
	flags := args[0].Uint64()
	switch name {
	case "fork":
		return true
	case "clone3":
		var first primitive.Uint64
		if _, err := first.CopyIn(t, args[0].Pointer()); err != nil {
			return false // it will be refused
		}
		flags = uint64(first)
	}
	return flags&linux.CLONE_VM == 0
}

// breathe lets the guest have its turn, and waits as long as memory is used up, within reason. It reports false when the process is to die or, while
// memory is used up, has another signal: the guest may be having everybody stand still.
func breathe(t *kernel.Task) bool {
	if !taken(t, 3, 4) {
		runtime.Gosched() // else the guest's turn comes after the time slices of all who do the same
		return !t.Killed()
	}
	for began := time.Now(); time.Since(began) < hold; {
		if _, err := t.BlockWithTimeout(nil, true, turn()); !linuxerr.Equals(linuxerr.ETIMEDOUT, err) {
			return !t.Killed() && !taken(t, 1, 1)
		}
		if !taken(t, 1, 1) {
			break
		}
	}
	return true
}

// turns is when the last one comes, in nanoseconds since started.
var (
	turns   atomic.Int64
	started = time.Now()
)

// turn is how long to wait so that only one goes on in each breath. All at once they would use up what the guest has just freed. Those who were
// stopped in the queue have left their places empty, so it is not longer than that.
func turn() time.Duration {
	now := time.Since(started)
	for {
		last := turns.Load()
		mine := min(max(time.Duration(last), now)+breath, now+queue)
		if turns.CompareAndSwap(last, int64(mine)) {
			return mine - now
		}
	}
}

// taken reports whether more than a part of the machine's memory is.
func taken(t *kernel.Task, part, of uint64) bool {
	all := usage.MaximumTotalMemoryBytes
	known, total := usage.MemoryAccounting.Copy() // as old as the guest's last look
	used, err := t.Kernel().MemoryFile().TotalUsage()
	return err == nil && all > 0 && max(total, used+known.Mapped+known.System) > all/of*part
}
