//go:build linux

package nanny

import (
	"runtime"
	"sync"
)

// KeepThreads makes the runtime create n threads, which it keeps for later use. Code in the sandbox can use up the
// number of processes that it shares with the guest. Creating a thread would then fail, and the Go runtime aborts in
// that case.
func KeepThreads(n int) {
	var ready, done sync.WaitGroup
	ready.Add(n)
	for range n {
		done.Go(func() {
			runtime.LockOSThread() // so that each goroutine needs its own thread
			defer runtime.UnlockOSThread()
			ready.Done()
			ready.Wait()
		})
	}
	done.Wait()
}
