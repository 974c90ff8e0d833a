package wire

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"sync"
)

// The multiplexer is our own because a warm cell is little more than its wake-ups. A general one has goroutines for
// sending and receiving, and in a sandbox each hand-over between two of them costs as much as a
// third of the cell itself. Here whoever writes writes to the link directly, and whoever has read the beginning of a
// call serves it, after it has left the reading to a fresh goroutine (measured through yamux: 2.0 times the floor that
// bench measures, so: see there).
//
// A frame is a type, a stream and a number, and behind data as many bytes:
//
//	open    the stream begins; each side has its own numbers, in ascending order
//	data    number bytes of it
//	credit  the other side may send that many bytes more than before
//	end     nothing more is sent or read by this side
//
// A side may send window bytes of a stream before the other one has read some, so that one that is not read can neither fill our memory nor
// keep the others from going on.
const (
	muxOpen byte = iota + 1
	muxData
	muxCredit
	muxEnd

	muxHeader = 9
	// muxWindow is how far a writer may be ahead of its reader.
	muxWindow = 4 << 20
	// muxFrame bounds the bytes of one frame: others wait behind it.
	muxFrame = 256 << 10
	// muxStreams bounds the streams that the other side may have open.
	muxStreams = 1024
	// muxPooled is from which size on received data lies in reused memory.
	muxPooled = 32 << 10
	muxBuffer = 32 << 10
)

// errMuxClosed is what streams of a session give that we have closed.
var errMuxClosed = fmt.Errorf("the session has been closed: %w", io.ErrClosedPipe)

type mux struct {
	closer io.Closer
	done   chan struct{}

	r      *bufio.Reader  // used by the one goroutine that reads
	handle func(*conn)    // serves a stream that the other side has opened
	odd    uint32         // lowest bit of the numbers that are ours
	calls  sync.WaitGroup // handlers
	chunks sync.Pool      // of *[]byte, muxFrame large

	writeMu sync.Mutex
	w       io.Writer // guarded by writeMu
	out     []byte    // guarded by writeMu; reused between writes
	next    uint32    // guarded by writeMu; our last number

	mu     sync.Mutex
	conns  map[uint32]*conn // guarded by mu
	theirs int              // guarded by mu; how many of conns the other side has opened
	last   uint32           // guarded by mu; its last number
	err    error            // guarded by mu; why the session has ended
}

func newMux(rw io.ReadWriter, closer io.Closer, host bool) *mux {
	m := &mux{
		closer: closer, done: make(chan struct{}), r: bufio.NewReaderSize(rw, muxBuffer), w: rw, conns: map[uint32]*conn{},
		chunks: sync.Pool{New: func() any { b := make([]byte, muxFrame); return &b }},
	}
	if host {
		m.odd = 1
	}
	m.next = m.odd
	return m
}

// conn is one stream.
type conn struct {
	m      *mux
	id     uint32
	user   *Stream // of a handler, kept for the next call
	theirs bool    // opened by the other side

	// All guarded by m.mu.
	readable sync.Cond
	writable sync.Cond
	unread   []chunk
	room     int  // bytes that the other side may send
	owed     int  // bytes that were read and not yet given as credit
	credit   int  // bytes that we may send
	closed   bool // by us
	ended    bool // by the other side
	served   bool // a handler has it
}

// chunk is data that was received.
type chunk struct {
	data   []byte
	pooled *[]byte // what it lies in, to be given back; nil: its own
}

// newConn makes a stream known.
//
// Preconditions: mu is held.
func (m *mux) newConn(id uint32, theirs bool) *conn {
	c := &conn{m: m, id: id, theirs: theirs, room: muxWindow, credit: muxWindow}
	c.readable.L, c.writable.L = &m.mu, &m.mu
	m.conns[id] = c
	return c
}

// open begins a stream.
func (m *mux) open() (*conn, error) {
	// The other side expects numbers in ascending order, so they are given by whoever may write.
	m.writeMu.Lock()
	defer m.writeMu.Unlock()
	m.mu.Lock()
	if m.err != nil {
		defer m.mu.Unlock()
		return nil, m.err
	}
	m.next += 2
	c := m.newConn(m.next, false)
	m.mu.Unlock()
	return c, m.write(muxOpen, c.id, 0, nil)
}

func (m *mux) send(typ byte, id uint32, n int, data []byte) error {
	m.writeMu.Lock()
	defer m.writeMu.Unlock()
	return m.write(typ, id, n, data)
}

// write writes a frame in one piece: each write on its own costs a wake-up on the other side.
//
// Preconditions: writeMu is held.
func (m *mux) write(typ byte, id uint32, n int, data []byte) error {
	b := append(m.out[:0], typ)
	b = binary.BigEndian.AppendUint32(b, id)
	b = binary.BigEndian.AppendUint32(b, uint32(n))
	b = append(b, data...)
	m.out = b
	if _, err := m.w.Write(b); err != nil {
		err = fmt.Errorf("%w: %w", io.ErrClosedPipe, err)
		m.fail(err)
		return err
	}
	return nil
}

// fail ends the session. The first reason counts.
func (m *mux) fail(err error) {
	m.mu.Lock()
	if m.err != nil {
		m.mu.Unlock()
		return
	}
	m.err = err
	for _, c := range m.conns {
		c.readable.Broadcast()
		c.writable.Broadcast()
	}
	close(m.done)
	m.mu.Unlock()
	_ = m.closer.Close() // it has ended already, or we no longer want it
}

// read takes frames off the link, until one begins a call: that one it serves itself, and another goroutine reads on.
func (m *mux) read() {
	for {
		var head [muxHeader]byte
		if _, err := io.ReadFull(m.r, head[:]); err != nil {
			m.fail(fmt.Errorf("%w: %w", io.ErrClosedPipe, err))
			return
		}
		typ, id, n := head[0], binary.BigEndian.Uint32(head[1:]), int(binary.BigEndian.Uint32(head[5:]))
		c, err := m.take(typ, id, n)
		if err != nil {
			m.fail(err)
			return
		}
		if c != nil {
			go m.read()
			m.handle(c)
			m.calls.Done()
			return
		}
	}
}

// take deals with one frame and gives a stream that is to be served now.
func (m *mux) take(typ byte, id uint32, n int) (*conn, error) {
	var got chunk
	if typ == muxData {
		if n == 0 || n > muxFrame {
			return nil, fmt.Errorf("frame of %d bytes", n)
		}
		got = m.chunk(n)
		if _, err := io.ReadFull(m.r, got.data); err != nil {
			return nil, fmt.Errorf("%w: %w", io.ErrClosedPipe, err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return nil, m.err
	}
	if typ == muxOpen {
		if id&1 == m.odd || id <= m.last || m.theirs >= muxStreams {
			return nil, fmt.Errorf("stream %d cannot be opened", id)
		}
		m.last = id
		m.theirs++
		m.newConn(id, true)
		return nil, nil
	}
	c := m.conns[id]
	if c == nil {
		m.recycle(got)
		return nil, nil // we have closed it, and it was under way
	}
	switch typ {
	case muxData:
		if c.room -= n; c.room < 0 {
			return nil, fmt.Errorf("stream %d: more bytes than there is room for", id)
		}
		c.unread = append(c.unread, got)
		if c.theirs && !c.served && m.handle != nil {
			c.served = true
			m.calls.Add(1)
			return c, nil
		}
		c.readable.Signal()
	case muxCredit:
		if n > muxWindow || c.credit+n > muxWindow {
			return nil, fmt.Errorf("stream %d: credit of %d bytes", id, n)
		}
		c.credit += n
		c.writable.Broadcast()
	case muxEnd:
		c.ended = true
		m.forget(c)
	default:
		return nil, fmt.Errorf("frame of type %d", typ)
	}
	return nil, nil
}

// forget takes a stream out that is over on one side at least.
//
// Preconditions: mu is held.
func (m *mux) forget(c *conn) {
	if m.conns[c.id] == c {
		delete(m.conns, c.id)
		if c.theirs {
			m.theirs--
		}
	}
	c.readable.Broadcast()
	c.writable.Broadcast()
}

func (m *mux) chunk(n int) chunk {
	if n < muxPooled {
		return chunk{data: make([]byte, n)}
	}
	b := m.chunks.Get().(*[]byte) //nolint:forcetypeassert // nothing else is put there
	return chunk{data: (*b)[:n], pooled: b}
}

func (m *mux) recycle(c chunk) {
	if c.pooled != nil {
		m.chunks.Put(c.pooled)
	}
}

// rest gives a served stream back when there is nothing to do on it, and reports whether it did.
func (c *conn) rest() bool {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if len(c.unread) > 0 || c.ended || c.closed || c.m.err != nil {
		return false
	}
	c.served = false
	return true
}

// Read implements io.Reader: what came before an end is given first.
func (c *conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	m := c.m
	m.mu.Lock()
	for len(c.unread) == 0 || c.closed {
		err := error(nil)
		switch {
		case c.closed:
			err = io.ErrClosedPipe
		case c.ended:
			err = io.EOF
		case m.err != nil:
			err = m.err
		}
		if err != nil {
			m.mu.Unlock()
			return 0, err
		}
		c.readable.Wait()
	}
	n := 0
	for n < len(p) && len(c.unread) > 0 {
		first := &c.unread[0]
		k := copy(p[n:], first.data)
		n += k
		if first.data = first.data[k:]; len(first.data) == 0 {
			m.recycle(*first)
			*first = chunk{}
			if c.unread = c.unread[1:]; len(c.unread) == 0 {
				c.unread = nil
			}
		}
	}
	grant := 0
	if c.owed += n; c.owed >= muxWindow/2 && !c.ended {
		grant, c.owed = c.owed, 0
		c.room += grant
	}
	m.mu.Unlock()
	if grant > 0 {
		_ = m.send(muxCredit, c.id, grant, nil) // a session that has ended tells the next read
	}
	return n, nil
}

// Write implements io.Writer. It waits while the other side does not read.
func (c *conn) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := c.claim(len(p) - done)
		if err != nil {
			return done, err
		}
		if err := c.m.send(muxData, c.id, n, p[done:done+n]); err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// claim waits for credit and takes up to n bytes of it.
func (c *conn) claim(n int) (int, error) {
	m := c.m
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		switch {
		case c.closed || c.ended:
			return 0, io.ErrClosedPipe
		case m.err != nil:
			return 0, m.err
		case c.credit > 0:
			n = min(n, c.credit, muxFrame)
			c.credit -= n
			return n, nil
		}
		c.writable.Wait()
	}
}

// Close ends the stream for both sides. The other one still reads what was sent before.
func (c *conn) Close() error {
	m := c.m
	m.mu.Lock()
	if c.closed || m.err != nil {
		c.closed = true
		m.mu.Unlock()
		return nil
	}
	c.closed = true
	ended := c.ended
	for _, u := range c.unread {
		m.recycle(u)
	}
	c.unread = nil
	m.forget(c)
	m.mu.Unlock()
	if ended {
		return nil
	}
	return m.send(muxEnd, c.id, 0, nil)
}
