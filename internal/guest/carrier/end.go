package carrier

import (
	"io"
	"sync"
	"time"
)

// end is one end of the stream: what was received and not read, and what was sent and not consumed by the other end.
type end struct {
	codec codec
	done  chan struct{} // closed when err is set
	lossy bool          // what this end sends can be lost without an error

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
	limit  int    // guarded by mu; how much of out may be sent: see lost
	grown  int    // guarded by mu; bytes consumed since limit has grown
	asking bool   // guarded by mu; a ping was sent because of the limit
	urgent []kind // guarded by mu; frames without data that must be sent
	owing  bool   // guarded by mu; the other end waits for an ack
	asked  uint64 // guarded by mu; received when a repetition was last requested, plus one
	signs  uint64 // guarded by mu; counts received frames
}

func newEnd(token []byte, direction byte) *end {
	e := &end{codec: newCodec(token, direction), limit: window, done: make(chan struct{})}
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
	e.limit, e.grown, e.asking = window, 0, false
	e.urgent, e.asked, e.owing = nil, 0, false
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
	if e.consumed()-e.told >= ackAfter || e.owing && len(e.inbox) == 0 {
		e.owing = false
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
		e.asking = false
		if e.grown += n; e.grown >= e.limit {
			e.limit, e.grown = min(window, e.limit+growth), 0
		}
		e.changed.Broadcast()
	}
	switch f.kind {
	case hello, resume:
		if e.lossy && f.kind == resume && f.offset < e.base+uint64(e.next) {
			e.lost()
		}
		if f.offset >= e.base && f.offset <= e.base+uint64(len(e.out)) {
			e.next = int(f.offset - e.base)
			e.changed.Broadcast()
		}
	case data:
		e.accept(f)
	case ping:
		e.send(ack)
		e.owing = len(e.inbox) > 0
		if f.offset > e.received {
			e.send(resume)
		}
	case ack:
		if f.offset > e.received {
			e.send(resume)
		}
	}
}

// lost notes that the service has lost what was sent, because it was not read fast enough: less may be on its way from
// now on.
//
// Preconditions: mu is held.
func (e *end) lost() {
	e.limit, e.grown, e.asking = max(minWindow, e.limit/2), 0, false
}

// payloadOf returns the payload of frames where limit bytes may be sent: many frames, so that some of them arrive.
func payloadOf(limit int) int { return min(maxPayload, max(minWindow/8, limit/16)) }

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
	for len(e.urgent) == 0 && e.next >= min(len(e.out), e.limit) {
		if e.err != nil || stop() {
			return nil
		}
		if e.next < len(e.out) && !e.asking {
			e.asking = true
			e.urgent = append(e.urgent, ping)
			break
		}
		e.changed.Wait()
	}
	if stop() {
		return nil
	}
	var b []byte
	e.told = e.consumed()
	for _, k := range e.urgent {
		offset := e.received
		if k == ping || k == ack {
			offset = e.base + uint64(e.next)
		}
		b = e.codec.encode(b, frame{kind: k, conn: e.conn, offset: offset, consumed: e.told})
	}
	e.urgent = nil
	for limit := min(len(e.out), e.limit); e.next < limit && len(b) < maxBatch; {
		n := min(payloadOf(e.limit), limit-e.next)
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
		close(e.done)
	}
	e.changed.Broadcast()
}

// remind asks the other end for an ack while there is none for what was sent. The answer shows what the service has
// lost, also if that was the last thing sent, or an earlier request.
func (e *end) remind() {
	for {
		e.mu.Lock()
		for e.next == 0 && e.err == nil {
			e.changed.Wait()
		}
		base := e.base
		e.mu.Unlock()
		for pause, waiting := firstReminder, true; waiting; pause = min(2*pause, maxReminder) {
			select {
			case <-time.After(pause):
			case <-e.done:
				return
			}
			e.mu.Lock()
			if waiting = e.base == base && e.next > 0; waiting {
				e.send(ping)
			}
			e.mu.Unlock()
		}
	}
}

// Guest is the guest's end, over the standard input and output of its process.
type Guest struct{ end *end }

// NewGuest returns the guest's end and serves it until in ends.
func NewGuest(in io.Reader, out io.Writer, token []byte) *Guest {
	g := &Guest{newEnd(token, fromGuest)}
	g.end.lossy = true
	go g.end.remind()
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
