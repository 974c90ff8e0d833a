package client

import (
	"testing"
	"time"
)

// A request that kills each server must not be retried forever, although a server is always being started.
func TestPatienceWithAServerThatIsAlwaysBeingStarted(t *testing.T) {
	c := &Client{opts: Options{RetryTime: time.Minute, Starting: func() bool { return true }}}
	p := c.retryTimer()
	if !p.wait(t.Context()) {
		t.Error("no retry")
	}
	p.latest = time.Now()
	if p.wait(t.Context()) {
		t.Error("retries do not end")
	}
}
