package rlm

import (
	"encoding/json"
	"strings"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

const (
	// progressEvery is the minimum time between two reports of a node. A terminal needs no more than 5 a second.
	progressEvery = 200 * time.Millisecond
	// progressBytes bounds the text and the output in a report. It is more than the last lines that a terminal shows.
	progressBytes = 1000
)

// progress is what the watchers of a run are told about a node between two events.
type progress struct {
	mu      sync.Mutex
	call    string      // guarded by mu; ID of the call in progress
	text    string      // guarded by mu; its reply so far
	output  string      // guarded by mu; the end of the output of the running cell
	sent    time.Time   // guarded by mu; when the last report was sent
	waiting *time.Timer // guarded by mu; sends the next report; nil: none is due
}

// reportProgress changes the progress of the node with set, and sends it to the watchers of the run, if there are any:
// now, or when progressEvery has passed since the last report.
func (n *node) reportProgress(set func(p *progress)) {
	if !n.run.log.Watched() {
		return
	}
	p := &n.live
	p.mu.Lock()
	defer p.mu.Unlock()
	set(p)
	if p.waiting != nil {
		return
	}
	if wait := progressEvery - time.Since(p.sent); wait > 0 {
		p.waiting = time.AfterFunc(wait, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.waiting != nil { // not stopped meanwhile
				n.sendProgress()
			}
		})
		return
	}
	n.sendProgress()
}

// sendProgress sends a report.
//
// Preconditions: n.live.mu is held.
func (n *node) sendProgress() {
	p, r := &n.live, n.run
	p.sent, p.waiting = time.Now(), nil
	read, total := r.coverage.sofar()
	raw, err := json.Marshal(v1.Progress{
		Call:   p.call,
		Text:   lastBytes(withoutReasoning(p.text)),
		Output: lastBytes(p.output),
		Read:   read,
		Bytes:  total,
	})
	if err != nil {
		return // the next report may be valid
	}
	r.log.Report(v1.RunEvent{Node: n.id, Depth: n.depth, Kind: v1.KindProgress, Data: r.engine.redactor.JSON(raw)})
}

// endProgress forgets the progress of a call or cell that has ended.
func (n *node) endProgress() {
	p := &n.live
	p.mu.Lock()
	defer p.mu.Unlock()
	p.call, p.text, p.output = "", "", ""
	if p.waiting != nil {
		p.waiting.Stop()
		p.waiting = nil
	}
}

// reportText reports the reply of a call so far.
func (n *node) reportText(call, text string) {
	n.reportProgress(func(p *progress) { p.call, p.text, p.output = call, text, "" })
}

// outputReporter reports what a cell prints.
type outputReporter struct {
	n    *node
	tail []byte
}

// Write implements io.Writer.
func (o *outputReporter) Write(b []byte) (int, error) {
	o.tail = append(o.tail, b[max(0, len(b)-progressBytes):]...)
	o.tail = o.tail[max(0, len(o.tail)-progressBytes):]
	o.n.reportProgress(func(p *progress) { p.output = string(o.tail) })
	return len(b), nil
}

// lastBytes returns the end of a text, with at most progressBytes.
func lastBytes(s string) string { return strings.ToValidUTF8(s[max(0, len(s)-progressBytes):], "") }
