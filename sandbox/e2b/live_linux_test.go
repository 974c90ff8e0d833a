package e2b

import (
	"testing"

	"github.com/recluse-dev/recluse/internal/remoteguest/remotetest"
	"github.com/recluse-dev/recluse/internal/testneed"
)

// TestLive uses the service. It runs in make test-live.
func TestLive(t *testing.T) {
	keys := testneed.Live(t, "E2B_API_KEY")
	o := remotetest.LiveOptions(t)
	o.Price = 0.1
	b, err := New(Options{Key: keys[0], Remote: o})
	if err != nil {
		t.Fatal(err)
	}
	remotetest.Live(t, b)
}
