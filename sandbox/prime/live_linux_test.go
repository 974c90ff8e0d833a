package prime

import (
	"testing"

	"github.com/recluse-dev/recluse/internal/remoteguest/remotetest"
	"github.com/recluse-dev/recluse/internal/testneed"
)

// TestLive uses the service. It runs in make test-live.
func TestLive(t *testing.T) {
	keys := testneed.Live(t, "PRIME_API_KEY")
	o := remotetest.LiveOptions(t)
	b, err := New(Options{Key: keys[0], PriceCPU: 0.05, PriceMemory: 0.02, Remote: o})
	if err != nil {
		t.Fatal(err)
	}
	remotetest.Live(t, b)
}
