package wire

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
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
	// muxFrame bounds the bytes of one frame. Others wait behind it, and behind those that are sent with it.
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
