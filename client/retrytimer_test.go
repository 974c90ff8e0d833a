package client

import (
	"testing"
	"time"
)

// A server that dies over every request is being started for ever.
func TestPatienceWithAServerThatIsAlwaysBeingStarted(t *testing.T) {
	c := &Client{opts: Options{RetryTime: time.Minute, Starting: func() bool { return true }}}
	p := c.retryTimer()
	if !p.wait(t.Context()) {
		t.Error("it gives up at once")
	}
	p.latest = time.Now()
	if p.wait(t.Context()) {
		t.Error("it never gives up")
	}
}
