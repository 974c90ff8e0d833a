//go:build linux

package network

import (
	"runtime"
	"testing"

	"github.com/recluse-dev/recluse/internal/testneed"
)

// The garbage of connections is returned after the last one.
func TestAnIdleGuestIsTidied(t *testing.T) {
	n := New(&policy{}, func(int) string { return "" })
	forced := func() uint32 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.NumForcedGC
	}
	before := forced()
	n.sizes.count(1)
	n.tidy()
	if now := forced(); now != before {
		t.Errorf("%d collections while a connection is open", now-before)
	}
	n.sizes.count(-1)
	n.tidying.Reset(0)
	testneed.Await(t, "a collection", func() bool { return forced() > before })
}
