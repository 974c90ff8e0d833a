//go:build linux

package nanny

import (
	"runtime"
	"sync"
)

// KeepThreads makes the runtime have n threads, which it keeps for when it needs them. Where code in the sandbox can use up the
// processes that are left to all of us, a thread that is asked for later may not be had, and the runtime does not survive that.
func KeepThreads(n int) {
	var ready, done sync.WaitGroup
	ready.Add(n)
	for range n {
		done.Go(func() {
			runtime.LockOSThread() // so that each needs one of its own
			defer runtime.UnlockOSThread()
			ready.Done()
			ready.Wait()
		})
	}
	done.Wait()
}
