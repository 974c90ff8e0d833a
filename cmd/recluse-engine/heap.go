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
	// ownHeap is what the kernel's heap holds without anybody's doing.
	ownHeap = 16 << 20
	// largeHeap is from where on the collector runs more often, so that growth is seen before it is too late.
	largeHeap    = 96 << 20
	largePercent = 50
	usualPercent = 100
	// A large heap is collected at these times even if it does not grow, first soon and then more rarely: what an ended
	// process had there is not free before that, and somebody innocent would be held to account for it.
	firstLook = 100 * time.Millisecond
	lastLook  = 2 * time.Second
)

// countHeap adds the heap of gVisor's kernel to the memory that the sandbox shows as used. What waits in pipes and sockets lies there, and
// without this nobody inside could see that it fills the machine. It looks after each collection, which growth itself brings about: an
// idle sandbox is never woken for it.
func countHeap() {
	if !slices.Contains(os.Args, "boot") {
		return
	}
	h := &heapCount{}
	h.again()
}

type heapCount struct {
	counted uint64 // used by finalizers alone, which run one after the other
	large   atomic.Bool
}

// again asks to be told of the next collection.
func (h *heapCount) again() {
	// Collected at the next collection, which is the news.
	runtime.SetFinalizer(&struct{ _ [32]byte }{}, func(*struct{ _ [32]byte }) {
		h.look()
		h.again()
	})
}

func (h *heapCount) look() {
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

// collect sees to it that a heap that is large for a moment only is known as small soon after.
func (h *heapCount) collect() {
	for pause := firstLook; h.large.Load(); pause = min(2*pause, lastLook) {
		time.Sleep(pause)
		runtime.GC()
	}
}
