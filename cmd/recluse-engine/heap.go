//go:build linux

package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/sentry/usage"
)

const (
	// ownHeap is the size of the kernel's heap without any load.
	ownHeap = 16 << 20
	// largeHeap is the heap size above which the collector runs more often, so that growth is noticed early enough.
	largeHeap    = 96 << 20
	largePercent = 50
	usualPercent = 100
	// firstCollect and maxCollect are the first and the longest time between two collections of a large heap that does
	// not grow. Without these collections, the memory of an ended process would still count as used, and the guest
	// would kill another process for it.
	firstCollect = 100 * time.Millisecond
	maxCollect   = 2 * time.Second
)

// countHeap adds the heap of gVisor's kernel to the memory that the sandbox reports as used. The heap contains the data
// in pipes and sockets, and without countHeap nothing inside could notice that this data fills the machine. The heap is
// measured after each garbage collection. Growth itself causes collections, so an idle sandbox is never woken up for
// it.
func countHeap() {
	if !slices.Contains(os.Args, "boot") {
		return
	}
	h := &heapCount{}
	h.watchNextCollection()
}

type heapCount struct {
	counted uint64 // used only by finalizers, which run one after the other
	large   atomic.Bool
}

// watchNextCollection calls update after each collection, beginning with the next one.
func (h *heapCount) watchNextCollection() {
	// The object is garbage at the next collection, which runs its finalizer.
	runtime.SetFinalizer(&struct{ _ [32]byte }{}, func(*struct{ _ [32]byte }) {
		h.update()
		h.watchNextCollection()
	})
}

// update adds the change of the heap since the last call to the used memory, and sets the GC percentage.
func (h *heapCount) update() {
	if usage.MemoryAccounting == nil {
		return // not booted yet
	}
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	live := s[0].Value.Uint64()
	now := live - min(live, ownHeap)
	if now > h.counted {
		usage.MemoryAccounting.Inc(now-h.counted, usage.System, 0)
	} else if now < h.counted {
		usage.MemoryAccounting.Dec(h.counted-now, usage.System, 0)
	}
	h.counted = now
	large := live > largeHeap
	if h.large.Swap(large) == large {
		return
	}
	if large {
		debug.SetGCPercent(largePercent)
		go h.collect()
	} else {
		debug.SetGCPercent(usualPercent)
	}
}

// collect runs the collector until the heap is small again, so that a short peak does not count for long.
func (h *heapCount) collect() {
	for pause := firstCollect; h.large.Load(); pause = min(2*pause, maxCollect) {
		time.Sleep(pause)
		runtime.GC()
	}
}
