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
	mu    sync.Mutex
	state v1.Progress // guarded by mu
	next  time.Time   // guarded by mu; no report is sent before
}

// reportProgress changes the progress of the node with set, and sends it to the watchers of the run, if there are any. It does
// nothing if the last report was sent a short time ago.
func (n *node) reportProgress(set func(p *v1.Progress)) {
	r := n.run
	if !r.log.Watched() {
		return
	}
	n.live.mu.Lock()
	defer n.live.mu.Unlock()
	now := time.Now()
	if now.Before(n.live.next) {
		return
	}
	n.live.next = now.Add(progressEvery)
	set(&n.live.state)
	n.live.state.Read, n.live.state.Bytes = r.coverage.sofar()
	raw, err := json.Marshal(n.live.state)
	if err != nil {
		return // the next report may be valid
	}
	r.log.Report(v1.RunEvent{Node: n.id, Depth: n.depth, Kind: v1.KindProgress, Data: r.engine.redactor.JSON(raw)})
}

// reportText reports the reply of a call so far.
func (n *node) reportText(call string, text *strings.Builder) {
	n.reportProgress(func(p *v1.Progress) {
		p.Call, p.Text, p.Output = call, lastBytes(withoutReasoning(text.String())), ""
	})
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
	o.n.reportProgress(func(p *v1.Progress) { p.Call, p.Text, p.Output = "", "", lastBytes(string(o.tail)) })
	return len(b), nil
}

// lastBytes returns the end of a text, with at most progressBytes.
func lastBytes(s string) string { return strings.ToValidUTF8(s[max(0, len(s)-progressBytes):], "") }
