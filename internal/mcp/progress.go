package mcp

import (
	"context"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	progressEvery = 200 * time.Millisecond // at most so often is output passed on
	progressQuiet = 5 * time.Second        // and at least so often is it said that the call still runs: clients give up on silent ones
	progressText  = 4 << 10                // bytes of output in one message; the result has the rest
)

// progress tells a client that asked for it how far a call is. It is a writer for output. Its methods may be called on nil.
type progress struct {
	tell func(message string)
	done chan struct{}
	over chan struct{}

	mu   sync.Mutex
	text []byte // guarded by mu; not yet told
}

// progress gives nil when the client did not ask.
func (c *call) progress(what string) *progress {
	token := c.req.Params.GetProgressToken()
	if token == nil {
		return nil
	}
	n := 0.0
	began := time.Now()
	p := &progress{done: make(chan struct{}), over: make(chan struct{})}
	ctx := context.WithoutCancel(c) // the last words of a cancelled call may still be heard
	p.tell = func(message string) {
		n++
		if message == "" {
			message = what + ", " + time.Since(began).Round(time.Second).String()
		}
		// Somebody who has gone does not hear; the call ends for other reasons.
		_ = c.req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: n, Message: message})
	}
	go p.run()
	return p
}

// Write takes output. It never waits for the client.
func (p *progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text = append(p.text, b...)
	if over := len(p.text) - progressText; over > 0 {
		p.text = append(p.text[:0], p.text[over:]...)
	}
	return len(b), nil
}

func (p *progress) take() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := strings.ToValidUTF8(string(p.text), "\uFFFD")
	p.text = p.text[:0]
	return s
}

func (p *progress) run() {
	defer close(p.over)
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-p.done:
			if s := p.take(); s != "" {
				p.tell(s)
			}
			return
		case <-tick.C:
		}
		if s := p.take(); s != "" || time.Since(last) >= progressQuiet {
			p.tell(s)
			last = time.Now()
		}
	}
}

// stop tells what is left and ends.
func (p *progress) stop() {
	if p == nil {
		return
	}
	close(p.done)
	<-p.over
}
