package wire

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
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
//	bye     the other side has broken these rules and the session is over; the link below may well live on, so that nothing else would tell it
//
// A side may send window bytes of a stream before the other one has read some, so that one that is not read can neither fill our memory nor
// keep the others from going on.
const (
	muxOpen byte = iota + 1
	muxData
	muxCredit
	muxEnd
	muxBye

	muxHeader = 9
	// muxWindow is how far a writer may be ahead of its reader.
	muxWindow = 4 << 20
	// muxFrame bounds the bytes of one frame: others wait behind it.
	muxFrame = 256 << 10
	// muxStreams bounds the streams that each side may have open. Whoever wants one more waits.
	muxStreams = 1024
	// muxPooled is from which size on received data lies in reused memory.
	muxPooled = 32 << 10
	muxBuffer = 32 << 10
	// muxByeWait bounds how long a session that ends waits to tell the other side, which may not be reading.
	muxByeWait = time.Second
)

// errMuxClosed is what streams of a session give that we have closed, errMuxBye of one that the other side could not bear.
var (
	errMuxClosed = fmt.Errorf("the session has been closed: %w", io.ErrClosedPipe)
	errMuxBye    = fmt.Errorf("the other side has ended the session, because what we sent is against the rules: %w", io.ErrClosedPipe)
)

type mux struct {
	closer io.Closer
	done   chan struct{}

	r      *bufio.Reader  // used by the one goroutine that reads
	handle func(*conn)    // serves a stream that the other side has opened
	odd    uint32         // lowest bit of the numbers that are ours
	calls  sync.WaitGroup // handlers
	chunks sync.Pool      // of *[]byte, muxFrame large

	// Used by whoever has the turn to write: see begin.
	w     io.Writer
	limit interface{ SetWriteDeadline(time.Time) error } // interrupts a write; nil: cannot be done
	out   []byte                                         // reused between writes

	mu      sync.Mutex
	writing bool             // guarded by mu; somebody has the turn
	writer  *conn            // guarded by mu; for whom it writes, nil: for nobody who could give up
	poked   bool             // guarded by mu; the write was told to stop
	turn    sync.Cond        // of mu; writing is over
	room    sync.Cond        // of mu; a stream can be had
	conns   map[uint32]*conn // guarded by mu
	idle    []*channel       // guarded by mu; streams of ours between two calls
	ours    int              // guarded by mu; streams that we have, opened or about to be
	theirs  int              // guarded by mu; how many of conns the other side has opened
	last    uint32           // guarded by mu; its last number
	next    uint32           // guarded by mu; our last number
	err     error            // guarded by mu; why the session has ended
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
	m.turn.L, m.room.L = &m.mu, &m.mu
	m.limit, _ = closer.(interface{ SetWriteDeadline(time.Time) error })
	return m
}

// conn is one stream.
type conn struct {
	m      *mux
	id     uint32  // of ours: 0 before the first write
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

// newConn makes a stream, not yet known by a number.
func (m *mux) newConn(theirs bool) *conn {
	c := &conn{m: m, theirs: theirs, room: muxWindow, credit: muxWindow}
	c.readable.L, c.writable.L = &m.mu, &m.mu
	return c
}

// open gives a stream of ours between two calls, or a new one. It waits while we have as many as the other side bears. The other side
// hears of a new one with its first bytes.
func (m *mux) open(ctx context.Context) (*conn, *channel, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ours >= muxStreams && len(m.idle) == 0 {
		stop := context.AfterFunc(ctx, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.room.Broadcast()
		})
		defer stop()
	}
	for {
		switch n := len(m.idle); {
		case m.err != nil:
			return nil, nil, m.err
		case n > 0:
			ch := m.idle[n-1]
			m.idle = m.idle[:n-1]
			if ch.conn.ended {
				continue
			}
			return nil, ch, nil
		case m.ours < muxStreams:
			m.ours++
			return m.newConn(false), nil, nil
		case ctx.Err() != nil:
			m.room.Signal() // what woke us may have been meant for another
			return nil, nil, ctx.Err()
		}
		m.room.Wait()
	}
}

// keep takes a stream whose call is over for the next one, and reports whether there is room for it.
func (m *mux) keep(ch *channel) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.idle) >= maxIdle {
		return false
	}
	m.idle = append(m.idle, ch)
	m.room.Signal()
	return true
}

// begin waits for the turn to write. It gives up when c, for which it is, is closed; nil: never. A stream that has no number gets one:
// the other side expects them in ascending order, so whoever may write gives them.
func (m *mux) begin(c *conn) (opening bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		switch {
		case m.err != nil:
			err = m.err
		case c != nil && (c.closed || c.ended):
			err = io.ErrClosedPipe
		case !m.writing:
			m.writing, m.writer = true, c
			if c != nil && c.id == 0 {
				m.next += 2
				c.id = m.next
				m.conns[c.id] = c
				opening = true
			}
			return opening, nil
		}
		if err != nil {
			m.turn.Signal() // what woke us may have been meant for another
			return false, err
		}
		m.turn.Wait()
	}
}

// finish gives the turn to the next.
func (m *mux) finish() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writing, m.writer = false, nil
	m.calm()
	m.turn.Signal()
}

// poke makes a write for c stop that is under way.
//
// Preconditions: mu is held.
func (m *mux) poke(c *conn) {
	if m.writing {
		m.turn.Broadcast()
	}
	if m.writer == c && m.limit != nil {
		m.poked = m.limit.SetWriteDeadline(time.Unix(1, 0)) == nil
	}
}

// calm lets writes take their time again.
//
// Preconditions: mu is held.
func (m *mux) calm() {
	if m.poked {
		m.poked = false
		_ = m.limit.SetWriteDeadline(time.Time{}) // the next write tells
	}
}

// send writes a frame that nobody can want to give up.
func (m *mux) send(typ byte, id uint32, n int) error {
	if _, err := m.begin(nil); err != nil {
		return err
	}
	defer m.finish()
	m.out = appendHead(m.out[:0], typ, id, n)
	_, err := m.w.Write(m.out)
	return m.broken(err)
}

func appendHead(b []byte, typ byte, id uint32, n int) []byte {
	b = binary.BigEndian.AppendUint32(append(b, typ), id)
	return binary.BigEndian.AppendUint32(b, uint32(n))
}

// write writes a frame, and before the first the opening, in one piece: each write on its own costs a wake-up on the other side.
// When the stream is closed while the link is full, it returns, and what the other side must have for the sake of the others follows later.
func (c *conn) write(typ byte, n int, data []byte) error {
	return c.compose(typ, n, func(b []byte) ([]byte, error) { return append(b, data...), nil })
}

// fill writes a frame of n bytes that a function appends, for which there is credit. A large message is not copied twice then.
func (c *conn) fill(n int, f func(b []byte) ([]byte, error)) error { return c.compose(muxData, n, f) }

func (c *conn) compose(typ byte, n int, data func(b []byte) ([]byte, error)) error {
	m := c.m
	opening, err := m.begin(c)
	if err != nil {
		return err
	}
	b := m.out[:0]
	if opening {
		b = appendHead(b, muxOpen, c.id, 0)
	}
	if b, err = data(appendHead(b, typ, c.id, n)); err != nil {
		m.finish()
		return m.broken(err) // the credit is gone
	}
	m.out = b
	done, err := m.w.Write(b)
	if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
		defer m.finish()
		return m.broken(err)
	}
	if done == 0 {
		m.finish()
		return io.ErrClosedPipe
	}
	m.mu.Lock()
	m.writer = nil
	m.calm()
	m.mu.Unlock()
	go func() {
		defer m.finish()
		_, err := m.w.Write(b[done:])
		_ = m.broken(err) // the session tells
	}()
	return io.ErrClosedPipe
}

// broken ends the session if a write has failed.
func (m *mux) broken(err error) error {
	if err != nil {
		err = fmt.Errorf("%w: %w", io.ErrClosedPipe, err)
		m.fail(err)
	}
	return err
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
	m.turn.Broadcast()
	m.room.Broadcast()
	close(m.done)
	m.mu.Unlock()
	if !IsClosed(err) {
		m.bye()
	}
	_ = m.closer.Close() // it has ended already, or we no longer want it
}

// bye tells the other side that the session is over. Whether it can be told is its own affair.
func (m *mux) bye() {
	said := make(chan struct{})
	go func() {
		defer close(said)
		m.mu.Lock()
		for m.writing {
			m.turn.Wait()
		}
		m.writing = true
		m.mu.Unlock()
		defer m.finish()
		_, _ = m.w.Write(appendHead(nil, muxBye, 0, 0))
	}()
	t := time.NewTimer(muxByeWait)
	defer t.Stop()
	select {
	case <-said:
	case <-t.C:
	}
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
	switch {
	case typ == muxBye:
		return nil, errMuxBye
	case typ < muxOpen || typ > muxBye:
		return nil, fmt.Errorf("frame of type %d", typ)
	}
	if typ == muxOpen {
		if id&1 == m.odd || id <= m.last || m.theirs >= muxStreams {
			return nil, fmt.Errorf("stream %d cannot be opened", id)
		}
		m.last = id
		m.theirs++
		c := m.newConn(true)
		c.id = id
		m.conns[id] = c
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
		if m.forget(c); !c.theirs {
			m.release()
		}
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

// release lets another stream of ours take the place of one that is over, for the other side too.
//
// Preconditions: mu is held.
func (m *mux) release() {
	m.ours--
	m.room.Signal()
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

// await waits until there is something to read: what came before an end is given first.
//
// Preconditions: mu is held.
func (c *conn) await() error {
	for len(c.unread) == 0 || c.closed {
		switch {
		case c.closed:
			return io.ErrClosedPipe
		case c.ended:
			return io.EOF
		case c.m.err != nil:
			return c.m.err
		}
		c.readable.Wait()
	}
	return nil
}

// shift drops the first chunk, which has been read.
//
// Preconditions: mu is held.
func (c *conn) shift() {
	c.unread[0] = chunk{}
	if c.unread = c.unread[1:]; len(c.unread) == 0 {
		c.unread = nil
	}
}

// consumed notes that n bytes were read, and gives the credit that is due for them.
//
// Preconditions: mu is held.
func (c *conn) consumed(n int) (grant int) {
	if c.owed += n; c.owed >= muxWindow/2 && !c.ended {
		grant, c.owed = c.owed, 0
		c.room += grant
	}
	return grant
}

func (c *conn) give(grant int) {
	if grant > 0 {
		_ = c.write(muxCredit, grant, nil) // a session that has ended tells the next read
	}
}

// Read implements io.Reader.
func (c *conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	m := c.m
	m.mu.Lock()
	if err := c.await(); err != nil {
		m.mu.Unlock()
		return 0, err
	}
	n := 0
	for n < len(p) && len(c.unread) > 0 {
		first := &c.unread[0]
		k := copy(p[n:], first.data)
		n += k
		if first.data = first.data[k:]; len(first.data) == 0 {
			m.recycle(*first)
			c.shift()
		}
	}
	grant := c.consumed(n)
	m.mu.Unlock()
	c.give(grant)
	return n, nil
}

// whole gives the message that comes next where it lies, if all of it and nothing else came in one frame. The caller recycles it.
func (c *conn) whole() (got chunk, ok bool, err error) {
	m := c.m
	m.mu.Lock()
	if err := c.await(); err != nil {
		m.mu.Unlock()
		return chunk{}, false, err
	}
	got = c.unread[0]
	if len(got.data) < 4 || int64(binary.BigEndian.Uint32(got.data))+4 != int64(len(got.data)) {
		m.mu.Unlock()
		return chunk{}, false, nil
	}
	c.shift()
	grant := c.consumed(len(got.data))
	m.mu.Unlock()
	c.give(grant)
	return got, true, nil
}

// Write implements io.Writer. It waits while the other side does not read.
func (c *conn) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := c.claim(len(p) - done)
		if err != nil {
			return done, err
		}
		if err := c.write(muxData, n, p[done:done+n]); err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// roomFor reports whether n bytes can be sent without waiting for the other side to read what came before.
func (c *conn) roomFor(n int) bool {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	return c.credit >= n
}

// claimAll takes credit for n bytes if there is as much.
func (c *conn) claimAll(n int) bool {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.credit < n || c.closed || c.ended || c.m.err != nil {
		return false
	}
	c.credit -= n
	return true
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

// Close ends the stream for both sides. The other one still reads what was sent before. A Write that is under way gives up.
func (c *conn) Close() {
	m := c.m
	m.mu.Lock()
	if c.closed || m.err != nil {
		c.closed = true
		m.mu.Unlock()
		return
	}
	c.closed = true
	for _, u := range c.unread {
		m.recycle(u)
	}
	c.unread = nil
	m.forget(c)
	m.poke(c)
	known, ended := c.id != 0, c.ended
	if !known {
		m.release() // nobody has heard of it
	}
	m.mu.Unlock()
	if !known || ended {
		return
	}
	_ = m.send(muxEnd, c.id, 0) // a session that has ended needs none
	if !c.theirs {
		m.mu.Lock()
		m.release() // not before: the other side counts those that it knows
		m.mu.Unlock()
	}
}
