package wire

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// We have our own multiplexer because wake-ups dominate the time of a warm cell. A general multiplexer has goroutines
// for sending and receiving, and in a sandbox each hand-over between two goroutines costs as much as a third of the
// cell itself. Here the caller of Write writes to the link directly. The goroutine that has read the beginning of a
// call serves the call, after it has started a new goroutine that continues reading. (Measured through yamux: 2.0 times
// the floor that bench measures.)
//
// A frame is a type, a stream number and a number n; a data frame is followed by n bytes:
//
//	open    the stream begins, of class n; each side has its own stream numbers, in ascending order
//	data    n bytes of the stream
//	credit  the other side may send n bytes more than before
//	shut    this side sends no more, but still reads
//	end     this side neither sends nor reads any more. If n is 1, the stream was cut off: the other side must not take
//	        what it has received for everything
//	bye     the other side has violated the protocol, and the session is over. The link below may stay open, so
//	        nothing else would report the end
//
// A side may send as many bytes of a stream as its window before the other side has read some. So a stream that is not
// read neither fills our memory nor blocks the other streams. The window of a stream begins small, and grows when bytes
// are read, as far as the budget allows that all streams of its kind share: see bounds. So a thousand streams that are
// not read hold little more than their first windows.
//
// There are two classes of streams. Network connections have small windows and frames, because code in the sandbox may
// open many of them and read none, and because a cell waits for the frames that are sent before its own. They are
// counted apart from calls, so that they cannot use up the streams that calls need, and a call waits for at most one of
// them until it may write.
const (
	muxOpen byte = iota + 1
	muxData
	muxCredit
	muxEnd
	muxBye
	muxShut

	muxHeader = 9
	// muxWindow is the number of bytes that a writer may be ahead of its reader.
	muxWindow = 4 << 20
	// muxFrame bounds the bytes of one frame. Other streams wait for the frame, and for those that are sent with it.
	muxFrame = 256 << 10
	// muxStreams bounds the streams that each side may have open. Opening another one waits.
	muxStreams = 1024
	// muxPooled is the size from which on received data is stored in pooled memory.
	muxPooled = 32 << 10
	muxBuffer = 32 << 10
	// muxHandlers bounds the handlers that run, as a multiple of the streams: a handler may outlive a stream that the
	// other side has ended, and another stream may begin meanwhile.
	muxHandlers = 4
	// muxManyChunks is the number of unread chunks of a stream from which on small ones are joined: otherwise the memory
	// for each chunk would exceed its bytes.
	muxManyChunks, muxJoined = 64, 4 << 10
	// Bounds of calls that the guest opens, see above: the host does not trust the guest.
	muxGuestFirst  = 64 << 10
	muxGuestBudget = 64 << 20
	// Bounds of network connections, see above.
	muxNetWindow  = 256 << 10
	muxNetFirst   = 16 << 10
	muxNetBudget  = 8 << 20
	muxNetFrame   = 64 << 10
	muxNetStreams = 2048
	// maxGuestMessage bounds a message on a stream that the guest has opened, and maxGuestRequest one about a network
	// connection: the host allocates memory for a message as soon as it knows its size, on all streams at once.
	maxGuestMessage = muxFrame
	maxGuestRequest = 16 << 10
	// muxByeWait bounds how long an ending session tries to send bye: the other side may not be reading.
	muxByeWait = time.Second
)

// class is what a stream is for.
type class uint8

const (
	classCall class = iota
	classNetwork
	classes // their number
)

// kind is a class of streams, and for calls also which side opens them.
type kind uint8

const (
	hostCall kind = iota
	guestCall
	connection
	kinds // their number
)

func (k kind) class() class {
	if k == connection {
		return classNetwork
	}
	return classCall
}

// bounds are the limits of a kind of streams.
type bounds struct {
	first   int // window of a new stream
	window  int // largest window, see muxWindow
	budget  int // for what the windows of all streams exceed the first window
	frame   int // see muxFrame
	message int // see maxGuestMessage
}

var boundsOf = [kinds]bounds{
	hostCall:   {muxWindow, muxWindow, 0, muxFrame, maxGuestMessage},
	guestCall:  {muxGuestFirst, muxWindow, muxGuestBudget, muxFrame, maxGuestMessage},
	connection: {muxNetFirst, muxNetWindow, muxNetBudget, muxNetFrame, maxGuestRequest},
}

// streamsOf are the largest numbers of streams that each side may have open.
var streamsOf = [classes]int{classCall: muxStreams, classNetwork: muxNetStreams}

// errMuxClosed is the error of streams of a session that this side has closed. errMuxBye is that of a session that the
// other side has ended with bye.
var (
	errMuxClosed = fmt.Errorf("the session is closed: %w", io.ErrClosedPipe)
	errMuxBye    = fmt.Errorf("the peer has ended the session because of a protocol violation: %w", io.ErrClosedPipe)
)

type mux struct {
	closer io.Closer
	done   chan struct{}

	r      *bufio.Reader  // used only by the goroutine in read
	handle func(*conn)    // serves a stream that the other side has opened
	parity uint32         // lowest bit of this side's stream numbers
	calls  sync.WaitGroup // handlers
	chunks sync.Pool      // of *[]byte of size muxFrame
	small  sync.Pool      // of *[]byte of size muxNetFrame

	// Used only by the holder of the turn to write: see acquireTurn.
	w           io.Writer
	interrupter interface{ SetWriteDeadline(time.Time) error } // interrupts a write; nil: not supported
	out         []byte                                         // reused between writes

	mu          sync.Mutex
	writing     bool               // guarded by mu; the turn is taken
	writer      *conn              // guarded by mu; the stream that has the turn; nil: none that Close could interrupt
	interrupted bool               // guarded by mu; the write in progress was interrupted
	turns       [classes]sync.Cond // of mu; the turn is free for a class
	waiting     [classes]int       // guarded by mu; writers that wait for the turn
	last        class              // guarded by mu; of the writer that had the turn last
	streamFree  sync.Cond          // of mu; another stream can be opened
	conns       map[uint32]*conn   // guarded by mu
	idle        []*channel         // guarded by mu; streams of this side between two calls
	ours        [classes]int       // guarded by mu; streams of this side, open or about to be opened
	theirs      [classes]int       // guarded by mu; streams in conns that the other side has opened
	handlers    [classes]int       // guarded by mu; that run
	lent        [kinds]int         // guarded by mu; of the budget of each kind, by the windows of this side
	lastTheirs  uint32             // guarded by mu; the last stream number of the other side
	lastOurs    uint32             // guarded by mu; the last stream number of this side
	err         error              // guarded by mu; why the session has ended
}

func newMux(rw io.ReadWriter, closer io.Closer, host bool) *mux {
	m := &mux{
		closer: closer,
		done:   make(chan struct{}),
		r:      bufio.NewReaderSize(rw, muxBuffer),
		w:      rw,
		conns:  map[uint32]*conn{},
		chunks: sync.Pool{New: func() any { b := make([]byte, muxFrame); return &b }},
		small:  sync.Pool{New: func() any { b := make([]byte, muxNetFrame); return &b }},
	}
	if host {
		m.parity = 1
	}
	m.lastOurs = m.parity
	for i := range m.turns {
		m.turns[i].L = &m.mu
	}
	m.streamFree.L = &m.mu
	m.interrupter, _ = closer.(interface{ SetWriteDeadline(time.Time) error })
	return m
}

// newConn returns a stream without a number.
func (m *mux) newConn(theirs bool, of class) *conn {
	k := hostCall
	switch host := m.parity == 1; {
	case of == classNetwork:
		k = connection
	case theirs == host:
		k = guestCall
	}
	first := boundsOf[k].first
	c := &conn{m: m, theirs: theirs, kind: k, size: first, window: first, credit: first}
	c.readable.L, c.writable.L = &m.mu, &m.mu
	return c
}

// open returns an idle stream of this side, or a new one. It waits while this side has as many streams as allowed. The
// other side learns of a new stream with its first bytes.
func (m *mux) open(ctx context.Context) (*conn, *channel, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ours[classCall] >= muxStreams && len(m.idle) == 0 {
		stop := context.AfterFunc(ctx, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.streamFree.Broadcast()
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
		case m.ours[classCall] < muxStreams:
			m.ours[classCall]++
			return m.newConn(false, classCall), nil, nil
		case ctx.Err() != nil:
			m.streamFree.Signal() // pass on a signal that may have woken this caller
			return nil, nil, ctx.Err()
		}
		m.streamFree.Wait()
	}
}

// openNetwork returns a new stream for a network connection, or an error if there are too many.
func (m *mux) openNetwork() (*conn, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.err != nil:
		return nil, m.err
	case m.ours[classNetwork] >= muxNetStreams:
		return nil, ErrTooManyConnections
	}
	m.ours[classNetwork]++
	return m.newConn(false, classNetwork), nil
}

// keep stores a stream whose call is over for the next call. It returns false if enough streams are stored.
func (m *mux) keep(ch *channel) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.idle) >= maxIdle {
		return false
	}
	m.idle = append(m.idle, ch)
	m.streamFree.Signal()
	return true
}

// acquireTurn waits for the turn to write. It returns an error if c is closed meanwhile; c is nil for a write that
// Close must not interrupt. A stream without a number gets one here, because the other side expects the numbers in
// ascending order.
func (m *mux) acquireTurn(c *conn) (opening bool, err error) {
	of := classCall
	if c != nil {
		of = c.kind.class()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		switch {
		case m.err != nil:
			err = m.err
		case c != nil && (c.closed || c.ended):
			err = io.ErrClosedPipe
		case !m.writing && (of == classCall || m.last == classCall || m.waiting[classCall] == 0):
			m.writing, m.writer, m.last = true, c, of
			if c != nil && c.id == 0 {
				m.lastOurs += 2
				c.id = m.lastOurs
				m.conns[c.id] = c
				opening = true
			}
			return opening, nil
		}
		if err != nil {
			m.passTurn() // on to another writer: a signal may have woken this caller
			return false, err
		}
		m.waiting[of]++
		m.turns[of].Wait()
		m.waiting[of]--
	}
}

// next returns the class whose turn is next: calls, unless they had the last turn and connections wait.
//
// Preconditions: mu is held.
func (m *mux) next() class {
	if m.waiting[classCall] == 0 || m.last == classCall && m.waiting[classNetwork] > 0 {
		return classNetwork
	}
	return classCall
}

// passTurn wakes the writer whose turn is next, if the turn is free.
//
// Preconditions: mu is held.
func (m *mux) passTurn() {
	if !m.writing {
		m.turns[m.next()].Signal()
	}
}

// releaseTurn frees the turn for the next writer.
func (m *mux) releaseTurn() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writing, m.writer = false, nil
	m.clearInterrupt()
	m.passTurn()
}

// interruptWrite makes a write of c return, whether it waits for the turn or is in progress.
//
// Preconditions: mu is held.
func (m *mux) interruptWrite(c *conn) {
	if m.writing {
		m.turns[c.kind.class()].Broadcast()
	}
	if m.writer == c && m.interrupter != nil {
		m.interrupted = m.interrupter.SetWriteDeadline(time.Unix(1, 0)) == nil
	}
}

// clearInterrupt removes the write deadline that interruptWrite has set.
//
// Preconditions: mu is held.
func (m *mux) clearInterrupt() {
	if m.interrupted {
		m.interrupted = false
		_ = m.interrupter.SetWriteDeadline(time.Time{}) // if it fails, the next write reports it
	}
}

// send writes a frame without data that Close does not interrupt.
func (m *mux) send(typ byte, id uint32, n int) error {
	if _, err := m.acquireTurn(nil); err != nil {
		return err
	}
	defer m.releaseTurn()
	m.out = appendHead(m.out[:0], typ, id, n)
	_, err := m.w.Write(m.out)
	return m.endOnError(err)
}

func appendHead(b []byte, typ byte, id uint32, n int) []byte {
	b = binary.BigEndian.AppendUint32(append(b, typ), id)
	return binary.BigEndian.AppendUint32(b, uint32(n))
}

// endOnError ends the session if the result err of a write is not nil. It returns err, wrapped.
func (m *mux) endOnError(err error) error {
	if err != nil {
		err = fmt.Errorf("%w: %w", io.ErrClosedPipe, err)
		m.fail(err)
	}
	return err
}

// fail ends the session. Only the first call has an effect.
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
	for i := range m.turns {
		m.turns[i].Broadcast()
	}
	m.streamFree.Broadcast()
	close(m.done)
	m.mu.Unlock()
	if !IsClosed(err) {
		m.bye()
	}
	_ = m.closer.Close() // already closed, or no longer needed
}

// bye sends a bye frame, for muxByeWait at most. It ignores errors.
func (m *mux) bye() {
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		m.mu.Lock()
		for m.writing {
			m.waiting[classCall]++
			m.turns[classCall].Wait()
			m.waiting[classCall]--
		}
		m.writing = true
		m.mu.Unlock()
		defer m.releaseTurn()
		_, _ = m.w.Write(appendHead(nil, muxBye, 0, 0))
	}()
	t := time.NewTimer(muxByeWait)
	defer t.Stop()
	select {
	case <-sent:
	case <-t.C:
	}
}

// read reads frames from the link until one begins a call. It serves that call itself, and another goroutine continues
// reading.
func (m *mux) read() {
	for {
		var head [muxHeader]byte
		if _, err := io.ReadFull(m.r, head[:]); err != nil {
			m.fail(linkLost(err))
			return
		}
		typ, id, n := head[0], binary.BigEndian.Uint32(head[1:]), int(binary.BigEndian.Uint32(head[5:]))
		c, err := m.dispatch(typ, id, n)
		if err != nil {
			m.fail(err)
			return
		}
		if c != nil {
			go m.read()
			m.handle(c)
			m.handled(c.kind.class())
			return
		}
	}
}

// handled counts one handler less.
func (m *mux) handled(of class) {
	m.mu.Lock()
	m.handlers[of]--
	m.mu.Unlock()
	m.calls.Done()
}

// linkLost returns the error of a session whose link cannot be read. It is not io.EOF: otherwise a connection that is
// cut off would look as if the other side had sent everything.
func linkLost(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: %w", io.ErrClosedPipe, err)
}

// dispatch processes one frame. If a handler is to start for a stream, it returns the stream.
func (m *mux) dispatch(typ byte, id uint32, n int) (*conn, error) {
	var got chunk
	if typ == muxData {
		if n == 0 || n > muxFrame {
			return nil, fmt.Errorf("invalid frame size %d", n)
		}
		got = m.chunk(n)
		if _, err := io.ReadFull(m.r, got.data); err != nil {
			return nil, linkLost(err)
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
	case typ < muxOpen || typ > muxShut:
		return nil, fmt.Errorf("invalid frame type %d", typ)
	}
	if typ == muxOpen {
		of := class(min(n, int(classes)))
		if of == classes || id&1 == m.parity || id <= m.lastTheirs || m.theirs[of] >= streamsOf[of] {
			return nil, fmt.Errorf("invalid or excess stream %d", id)
		}
		m.lastTheirs = id
		m.theirs[of]++
		c := m.newConn(true, of)
		c.id = id
		m.conns[id] = c
		return nil, nil
	}
	c := m.conns[id]
	if c == nil {
		m.recycle(got)
		return nil, nil // closed by this side while the frame was in transit
	}
	switch typ {
	case muxData:
		if c.window -= n; c.window < 0 || c.peerShut {
			return nil, fmt.Errorf("stream %d: more bytes than its credit allows, or bytes after its end", id)
		}
		c.append(got)
		if c.theirs && !c.served && m.handle != nil {
			of := c.kind.class()
			if m.handlers[of] >= muxHandlers*streamsOf[of] {
				return nil, fmt.Errorf("stream %d: too many calls on streams that have ended", id)
			}
			c.served = true
			m.handlers[of]++
			m.calls.Add(1)
			return c, nil
		}
		c.readable.Signal()
	case muxCredit:
		if window := boundsOf[c.kind].window; n > window || c.credit+n > window {
			return nil, fmt.Errorf("stream %d: invalid credit of %d bytes", id, n)
		}
		c.credit += n
		c.writable.Broadcast()
	case muxShut:
		c.peerShut = true
		c.readable.Broadcast()
	case muxEnd:
		c.ended, c.reset = true, n == 1
		if m.forget(c); !c.theirs {
			m.freeStream(c.kind.class())
		}
	}
	return nil, nil
}

// forget removes a stream that at least one side has ended, and wakes its readers and writers.
//
// Preconditions: mu is held.
func (m *mux) forget(c *conn) {
	if m.conns[c.id] == c {
		delete(m.conns, c.id)
		if c.theirs {
			m.theirs[c.kind.class()]--
		}
	}
	c.readable.Broadcast()
	c.writable.Broadcast()
}

// freeStream counts one stream of this side less, after the other side has counted it, too, and wakes a waiting open.
//
// Preconditions: mu is held.
func (m *mux) freeStream(of class) {
	m.ours[of]--
	m.streamFree.Signal()
}

func (m *mux) chunk(n int) chunk {
	pool := &m.chunks
	switch {
	case n < muxPooled:
		return chunk{data: make([]byte, n)}
	case n <= muxNetFrame:
		pool = &m.small
	}
	b := pool.Get().(*[]byte) //nolint:forcetypeassert // only New fills the pools
	return chunk{data: (*b)[:n], pooled: b}
}

func (m *mux) recycle(c chunk) {
	switch {
	case c.pooled == nil:
	case len(*c.pooled) == muxNetFrame:
		m.small.Put(c.pooled)
	default:
		m.chunks.Put(c.pooled)
	}
}
