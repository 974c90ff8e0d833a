package server

import (
	"sync"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// position is how far the caller of a stream has been told.
type position struct {
	op string

	mu sync.Mutex
	at v1.Offsets // guarded by mu
}

// mark is the id of an event: whoever gives it back goes on behind it.
func (p *position) mark() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return v1.Mark{Op: p.op, Offsets: p.at}.String()
}

// advance moves a stream's offset and gives where it was.
func (p *position) advance(stream int, n int64) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := &p.at.Stdout
	if stream == 2 {
		at = &p.at.Stderr
	}
	was := *at
	*at += n
	return was
}

// output sends what is written to it as events. It never fails: what becomes of a task whose caller has gone is decided elsewhere.
type output struct {
	st     *stream
	pos    *position
	stream int
	rest   []byte // the beginning of a character whose end has not come yet
}

// Write implements io.Writer.
func (o *output) Write(b []byte) (int, error) {
	data := append(o.rest, b...)
	cut := len(data) - v1.Incomplete(data)
	o.rest = append([]byte(nil), data[cut:]...)
	o.send(data[:cut])
	return len(b), nil
}

// flush sends what was held back.
func (o *output) flush() {
	o.send(o.rest)
	o.rest = nil
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
