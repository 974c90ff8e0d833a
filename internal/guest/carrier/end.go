package carrier

import (
	"io"
	"sync"
)

// end is one end of the stream: what was received and not read, and what was sent and not consumed by the other end.
type end struct {
	codec codec

	mu      sync.Mutex
	changed sync.Cond // of everything below

	conn uint64 // guarded by mu; number of the connection
	err  error  // guarded by mu; why there is nothing more to read or write

	inbox    []byte // guarded by mu; received, and not read
	received uint64 // guarded by mu; position after inbox
	told     uint64 // guarded by mu; what the other end knows to be consumed

	out    []byte // guarded by mu; written, and not consumed by the other end
	base   uint64 // guarded by mu; position of out
	next   int    // guarded by mu; what of out was sent
	urgent []kind // guarded by mu; frames without data that must be sent
	asked  uint64 // guarded by mu; received when a repetition was last requested, plus one
	signs  uint64 // guarded by mu; counts received frames
}

func newEnd(token []byte, direction byte) *end {
	e := &end{codec: newCodec(token, direction)}
	e.changed.L = &e.mu
	return e
}

// begin starts a new connection: what an earlier one has left is forgotten.
//
// Preconditions: mu is held.
func (e *end) begin(conn uint64) {
	e.conn = conn
	e.inbox, e.received, e.told = nil, 0, 0
	e.out, e.base, e.next = nil, 0, 0
	e.urgent, e.asked = nil, 0
	e.changed.Broadcast()
}

// consumed returns the position up to which the reader has consumed the stream.
//
// Preconditions: mu is held.
func (e *end) consumed() uint64 { return e.received - uint64(len(e.inbox)) }

// read implements io.Reader.
func (e *end) read(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(e.inbox) == 0 {
		if e.err != nil {
			return 0, e.err
		}
		e.changed.Wait()
	}
	n := copy(p, e.inbox)
	if e.inbox = e.inbox[n:]; len(e.inbox) == 0 {
		e.inbox = nil
	}
	if e.consumed()-e.told >= ackAfter {
		e.send(ack)
	}
	return n, nil
}

// write implements io.Writer. Bytes that wait when the connection is replaced are dropped: they belong to an attachment
// that has ended.
func (e *end) write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	conn := e.conn
	for done := 0; done < len(p); {
		switch room := window - len(e.out); {
		case e.err != nil:
			return done, e.err
		case e.conn != conn:
			return len(p), nil
		case room <= 0:
			e.changed.Wait()
		default:
			n := min(room, len(p)-done)
			e.out = append(e.out, p[done:done+n]...)
			done += n
			e.changed.Broadcast()
		}
	}
	return len(p), nil
}

// send requests a frame without data.
//
// Preconditions: mu is held.
func (e *end) send(k kind) {
	for _, u := range e.urgent {
		if u == k {
			return
		}
	}
	e.urgent = append(e.urgent, k)
	e.changed.Broadcast()
}

// handle processes a frame of the current connection.
//
// Preconditions: mu is held.
func (e *end) handle(f frame) {
	e.signs++
	if f.consumed > e.base && f.consumed <= e.base+uint64(len(e.out)) {
		n := int(f.consumed - e.base)
		e.out = append([]byte(nil), e.out[n:]...)
		e.base = f.consumed
		e.next = max(0, e.next-n)
		e.changed.Broadcast()
	}
	switch f.kind {
	case hello, resume:
		if f.offset >= e.base && f.offset <= e.base+uint64(len(e.out)) {
			e.next = int(f.offset - e.base)
			e.changed.Broadcast()
		}
	case data:
		e.accept(f)
	case ping:
		e.send(ack)
	case ack:
	}
}

// accept stores the payload of a data frame, unless it is a repetition. If bytes before it are missing, it asks for
// them, once.
//
// Preconditions: mu is held.
func (e *end) accept(f frame) {
	switch {
	case f.offset > e.received:
		if e.asked != e.received+1 {
			e.asked = e.received + 1
			e.send(resume)
		}
		return
	case f.offset+uint64(len(f.payload)) <= e.received:
		return
	}
	fresh := f.payload[e.received-f.offset:]
	if len(e.inbox)+len(fresh) > window {
		return // the other end breaks the rules
	}
	e.inbox = append(e.inbox, fresh...)
	e.received += uint64(len(fresh))
	e.changed.Broadcast()
}

// batch waits for something to send and returns it, as whole frames. It returns nil when the stream ends or stop
// returns true.
func (e *end) batch(stop func() bool) []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(e.urgent) == 0 && e.next >= len(e.out) {
		if e.err != nil || stop() {
			return nil
		}
		e.changed.Wait()
	}
	if stop() {
		return nil
	}
	var b []byte
	e.told = e.consumed()
	for _, k := range e.urgent {
		b = e.codec.encode(b, frame{kind: k, conn: e.conn, offset: e.received, consumed: e.told})
	}
	e.urgent = nil
	for e.next < len(e.out) && len(b) < maxBatch {
		n := min(maxPayload, len(e.out)-e.next)
		b = e.codec.encode(b, frame{
			kind: data, conn: e.conn, offset: e.base + uint64(e.next), consumed: e.told,
			payload: e.out[e.next : e.next+n],
		})
		e.next += n
	}
	return b
}

// fail ends the stream.
func (e *end) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		e.err = err
	}
	e.changed.Broadcast()
}

// Guest is the guest's end, over the standard input and output of its process.
type Guest struct{ end *end }

// NewGuest returns the guest's end and serves it until in ends.
func NewGuest(in io.Reader, out io.Writer, token []byte) *Guest {
	g := &Guest{newEnd(token, fromGuest)}
	go g.receive(in, newCodec(token, fromHost))
	go func() {
		for {
			b := g.end.batch(func() bool { return false })
			if b == nil {
				return
			}
			if _, err := out.Write(b); err != nil {
				g.end.fail(err)
				return
			}
		}
	}()
	return g
}

// Read implements io.Reader.
func (g *Guest) Read(p []byte) (int, error) { return g.end.read(p) }

// Write implements io.Writer.
func (g *Guest) Write(p []byte) (int, error) { return g.end.write(p) }

func (g *Guest) receive(in io.Reader, c codec) {
	d := decoder{codec: c}
	buf := make([]byte, 64<<10)
	for {
		n, err := in.Read(buf)
		d.write(buf[:n], g.handle)
		if err != nil {
			g.end.fail(err)
			return
		}
	}
}

func (g *Guest) handle(f frame) {
	e := g.end
	e.mu.Lock()
	defer e.mu.Unlock()
	if f.kind == hello && f.conn > e.conn {
		e.begin(f.conn)
	}
	if f.conn != e.conn {
		return // of a host that was replaced
	}
	e.handle(f)
	if f.kind == hello {
		e.asked = 0
		e.send(resume)
	}
}
