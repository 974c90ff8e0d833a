//go:build linux

package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"

	"gvisor.dev/gvisor/pkg/sentry/usage"
)

const (
	// ownHeap is what the kernel's heap holds without anybody's doing.
	ownHeap = 16 << 20
	// largeHeap is from where on the collector runs more often, so that growth is seen before it is too late.
	largeHeap    = 48 << 20
	largePercent = 20
	usualPercent = 100
)

// countHeap adds the heap of gVisor's kernel to the memory that the sandbox shows as used. What waits in pipes and sockets lies there, and
// without this nobody inside could see that it fills the machine. It looks after each collection, which growth itself brings about: an
// idle sandbox is never woken for it.
func countHeap() {
	if !slices.Contains(os.Args, "boot") {
		return
	}
	var counted uint64
	var again func()
	look := func() {
		if usage.MemoryAccounting == nil {
			return
		}
		s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(s)
		live := s[0].Value.Uint64()
		now := live - min(live, ownHeap)
		if now > counted {
			usage.MemoryAccounting.Inc(now-counted, usage.System, 0)
		} else {
			usage.MemoryAccounting.Dec(counted-now, usage.System, 0)
		}
		switch {
		case live > largeHeap && counted <= largeHeap:
			debug.SetGCPercent(largePercent)
		case live <= largeHeap && counted > largeHeap:
			debug.SetGCPercent(usualPercent)
		}
		counted = now
	}
	again = func() {
		// Collected at the next collection, which is the news.
		runtime.SetFinalizer(&struct{ _ [32]byte }{}, func(*struct{ _ [32]byte }) {
			look()
			again()
		})
	}
	again()
}
