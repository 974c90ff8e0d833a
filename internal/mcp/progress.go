package mcp

import (
	"context"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	progressInterval  = 200 * time.Millisecond // shortest time between two notifications
	progressKeepAlive = 5 * time.Second        // longest time without a notification: clients cancel silent calls
	progressText      = 4 << 10                // bytes of output in one notification; the result contains the rest
)

// progress sends progress notifications of a call to the client. It is an io.Writer for the output of the call. stop
// may be called on nil.
type progress struct {
	send    func(message string)
	done    chan struct{}
	stopped chan struct{}

	mu   sync.Mutex
	text []byte // guarded by mu; output that was not sent yet
}

// progress starts the notifications of a call. It returns nil if the client did not request them. Notifications without
// output contain what and the elapsed time.
func (c *call) progress(what string) *progress {
	token := c.req.Params.GetProgressToken()
	if token == nil {
		return nil
	}
	n := 0.0
	began := time.Now()
	p := &progress{done: make(chan struct{}), stopped: make(chan struct{})}
	ctx := context.WithoutCancel(c) // the last output of a cancelled call is still sent
	p.send = func(message string) {
		n++
		if message == "" {
			message = what + ", " + time.Since(began).Round(time.Second).String()
		}
		// If the client is gone, the call ends for that reason, so this error is not needed.
		_ = c.req.Session.NotifyProgress(
			ctx,
			&sdk.ProgressNotificationParams{ProgressToken: token, Progress: n, Message: message},
		)
	}
	go p.run()
	return p
}

// Write implements io.Writer. It never waits for the client.
func (p *progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text = append(p.text, b...)
	if over := len(p.text) - progressText; over > 0 {
		p.text = append(p.text[:0], p.text[over:]...)
	}
	return len(b), nil
}

func (p *progress) takeText() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := strings.ToValidUTF8(string(p.text), "\uFFFD")
	p.text = p.text[:0]
	return s
}

func (p *progress) run() {
	defer close(p.stopped)
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-p.done:
			if s := p.takeText(); s != "" {
				p.send(s)
			}
			return
		case <-tick.C:
		}
		if s := p.takeText(); s != "" || time.Since(last) >= progressKeepAlive {
			p.send(s)
			last = time.Now()
		}
	}
}

// stop sends the remaining output and ends the notifications.
func (p *progress) stop() {
	if p == nil {
		return
	}
	close(p.done)
	<-p.stopped
}
