package server

import (
	"sync"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// position holds how much of an operation's output was sent to the caller of a stream.
type position struct {
	op string

	mu sync.Mutex
	at v1.Offsets // guarded by mu
}

// mark returns the id of an event. A caller that sends it as Last-Event-ID continues after the event.
func (p *position) mark() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return v1.Mark{Op: p.op, Offsets: p.at}.String()
}

// advance adds n to the offset of a stream and returns the previous offset.
func (p *position) advance(stream int, n int64) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := &p.at.Stdout
	if stream == 2 {
		at = &p.at.Stderr
	}
	previous := *at
	*at += n
	return previous
}

// output sends everything that is written to it as events. Writes never fail: call.do decides what happens to an
// operation whose caller has disconnected.
type output struct {
	st      *stream
	pos     *position
	stream  int
	partial []byte // the beginning of an incomplete UTF-8 character
}

// Write implements io.Writer.
func (o *output) Write(b []byte) (int, error) {
	data := append(o.partial, b...)
	cut := len(data) - v1.Incomplete(data)
	o.partial = append([]byte(nil), data[cut:]...)
	o.send(data[:cut])
	return len(b), nil
}

// flush sends the incomplete character at the end of the output.
func (o *output) flush() {
	o.send(o.partial)
	o.partial = nil
}

func (o *output) send(b []byte) {
	if len(b) == 0 {
		return
	}
	kind := v1.EventStdout
	if o.stream == 2 {
		kind = v1.EventStderr
	}
	at := o.pos.advance(o.stream, int64(len(b)))
	_ = o.st.send(o.pos.mark(), kind, v1.Chunk{Offset: at, Data: v1.Text(b)})
}
