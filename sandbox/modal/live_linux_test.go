package modal

import (
	"testing"

	"github.com/recluse-dev/recluse/internal/remoteguest/remotetest"
	"github.com/recluse-dev/recluse/internal/testneed"
)

// TestLive uses the service. It runs in make test-live.
func TestLive(t *testing.T) {
	keys := testneed.Live(t, "MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET")
	o := remotetest.LiveOptions(t)
	b, err := New(Options{TokenID: keys[0], TokenSecret: keys[1], PriceCPU: 0.142, PriceMemory: 0.0242, Remote: o})
	if err != nil {
		t.Fatal(err)
	}
	remotetest.Live(t, b)
}
