package wire

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
)

// conn is one stream of the multiplexer.
type conn struct {
	m      *mux
	id     uint32  // 0 before the first write of a stream that this side opens
	stream *Stream // of the handler, kept for the next call
	theirs bool    // opened by the other side
	kind   kind

	// All guarded by m.mu.
	readable sync.Cond
	writable sync.Cond
	unread   []chunk
	size     int  // of the window: the sum of window, owed and the bytes of unread
	window   int  // bytes that the other side may still send
	owed     int  // bytes that were read and for which no credit was sent yet
	credit   int  // bytes that this side may still send
	closed   bool // by this side
	ended    bool // by the other side
	reset    bool // ended by a cut
	shut     bool // this side sends no more
	peerShut bool // the other side sends no more
	served   bool // a handler is running
}

// chunk is received data.
type chunk struct {
	data   []byte
	pooled *[]byte // the pooled buffer that holds data; nil: not pooled
}

// write writes a frame. The first frame is preceded by the open frame in the same write, because each write costs a
// wake-up on the other side. If the stream is closed while the link is full, write returns; the rest of a partly
// written frame follows in the background, because the other streams need the frame to be complete.
func (c *conn) write(typ byte, n int, data []byte) error {
	return c.writeWith(func(b []byte) ([]byte, error) { return append(appendHead(b, typ, c.id, n), data...), nil })
}

// writeFrames writes data frames of the given sizes, which data appends to the write buffer. This saves a copy of large
// messages. The caller has claimed the credit.
func (c *conn) writeFrames(sizes []int, data func(b []byte, i int) ([]byte, error)) error {
	return c.writeWith(func(b []byte) (_ []byte, err error) {
		for i, n := range sizes {
			if b, err = data(appendHead(b, muxData, c.id, n), i); err != nil {
				return nil, err
			}
		}
		return b, nil
	})
}

// writeWith writes the frames that frames appends to the write buffer; see write.
func (c *conn) writeWith(frames func(b []byte) ([]byte, error)) error {
	m := c.m
	opening, err := m.acquireTurn(c)
	if err != nil {
		return err
	}
	b := m.out[:0]
	if opening {
		b = appendHead(b, muxOpen, c.id, int(c.kind.class()))
	}
	if b, err = frames(b); err != nil {
		m.releaseTurn()
		return m.endOnError(err) // the credit is used up, so the stream cannot continue
	}
	m.out = b
	done, err := m.w.Write(b)
	if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
		defer m.releaseTurn()
		return m.endOnError(err)
	}
	if done == 0 {
		m.releaseTurn()
		return io.ErrClosedPipe
	}
	m.mu.Lock()
	m.writer = nil
	m.clearInterrupt()
	m.mu.Unlock()
	go func() {
		defer m.releaseTurn()
		_, err := m.w.Write(b[done:])
		_ = m.endOnError(err) // ends the session
	}()
	return io.ErrClosedPipe
}

// maxMessage returns the size of the largest message that this side accepts.
func (c *conn) maxMessage() uint32 {
	if host := c.m.parity == 1; host && c.theirs {
		return uint32(boundsOf[c.kind].message)
	}
	return MaxFrame
}

// park ends the serving of a stream that has nothing to read, so that the next data starts a handler again. It returns
// false if the stream has unread data or is closed.
func (c *conn) park() bool {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if len(c.unread) > 0 || c.ended || c.closed || c.m.err != nil {
		return false
	}
	c.served = false
	return true
}

// awaitData waits until there is data to read. Data that came before an end is returned before the end is reported.
//
// Preconditions: mu is held.
func (c *conn) awaitData() error {
	for len(c.unread) == 0 || c.closed || c.reset {
		switch {
		case c.closed:
			return io.ErrClosedPipe
		case c.reset:
			return syscall.ECONNRESET
		case c.ended || c.peerShut:
			return io.EOF
		case c.m.err != nil:
			return c.m.err
		}
		c.readable.Wait()
	}
	return nil
}

// shift removes the first chunk of unread.
//
// Preconditions: mu is held.
func (c *conn) shift() {
	c.unread[0] = chunk{}
	if c.unread = c.unread[1:]; len(c.unread) == 0 {
		c.unread = nil
	}
}

// consumed records that n bytes were read, and returns the credit that is due to the other side.
//
// Preconditions: mu is held.
func (c *conn) consumed(n int) (grant int) {
	if c.owed += n; c.owed < c.size/2 || c.closed || c.ended || c.peerShut {
		return 0
	}
	held := c.size - c.owed // what the other side may send, and what is not read
	size := max(c.fairSize(), held)
	c.m.lent[c.kind] += size - c.size
	grant, c.owed, c.size = size-held, 0, size
	c.window += grant
	return grant
}

// fairSize returns the size that the window should have now. A stream gets at most a quarter of the budget that others
// leave, so that streams that are not read leave something to those that are.
//
// Preconditions: mu is held.
func (c *conn) fairSize() int {
	b := boundsOf[c.kind]
	free := b.budget - (c.m.lent[c.kind] - (c.size - b.first))
	return min(b.first+free/4, b.window)
}

// append adds received data to unread.
//
// Preconditions: mu is held.
func (c *conn) append(got chunk) {
	if k := len(c.unread) - 1; k >= muxManyChunks && got.pooled == nil {
		if last := &c.unread[k]; last.pooled == nil && len(last.data)+len(got.data) <= muxJoined {
			last.data = append(last.data, got.data...)
			return
		}
	}
	c.unread = append(c.unread, got)
}

func (c *conn) sendCredit(grant int) {
	if grant > 0 {
		_ = c.write(muxCredit, grant, nil) // if the session has ended, the next read reports it
	}
}

// Read implements io.Reader.
func (c *conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	m := c.m
	m.mu.Lock()
	if err := c.awaitData(); err != nil {
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
	c.sendCredit(grant)
	return n, nil
}

// takeMessage returns the next message without copying it, if it is complete and alone in one frame. The caller
// recycles the chunk.
func (c *conn) takeMessage() (got chunk, ok bool, err error) {
	m := c.m
	m.mu.Lock()
	if err := c.awaitData(); err != nil {
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
	c.sendCredit(grant)
	return got, true, nil
}

// writeNext writes the next received data to w.
func (c *conn) writeNext(w io.Writer) (int, error) {
	m := c.m
	m.mu.Lock()
	if err := c.awaitData(); err != nil {
		m.mu.Unlock()
		return 0, err
	}
	got := c.unread[0]
	c.shift()
	m.mu.Unlock()
	n, err := w.Write(got.data)
	m.mu.Lock()
	grant := c.consumed(len(got.data)) // only now: what w does not accept must hold back the other side
	m.mu.Unlock()
	m.recycle(got)
	if err == nil {
		c.sendCredit(grant)
	}
	return n, err
}

// Write implements io.Writer. It waits for credit while the other side does not read.
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

// roomFor reports whether n bytes can be sent without waiting for the other side to read.
func (c *conn) roomFor(n int) bool {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	return c.credit >= n
}

// claimAll takes credit for n bytes, and returns false if there is less.
func (c *conn) claimAll(n int) bool {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.credit < n || c.closed || c.ended || c.shut || c.m.err != nil {
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
		case c.closed || c.ended || c.shut:
			return 0, io.ErrClosedPipe
		case m.err != nil:
			return 0, m.err
		case c.credit > 0:
			n = min(n, c.credit, boundsOf[c.kind].frame)
			c.credit -= n
			return n, nil
		}
		c.writable.Wait()
	}
}

// CloseWrite ends this side's data. The other side reads what was sent before and then io.EOF, and can still send.
func (c *conn) CloseWrite() error {
	c.m.mu.Lock()
	done := c.shut
	c.shut = true
	c.writable.Broadcast()
	c.m.mu.Unlock()
	if done {
		return nil
	}
	return c.write(muxShut, 0, nil)
}

// Close ends the stream for both sides. The other side can still read the data sent before. A Write in progress
// returns.
func (c *conn) Close() { c.end(false) }

// Reset cuts the stream off: the other side reads an error and not the data sent before.
func (c *conn) Reset() { c.end(true) }

func (c *conn) end(reset bool) {
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
	m.lent[c.kind] -= c.size - boundsOf[c.kind].first
	m.forget(c)
	m.interruptWrite(c)
	known, ended := c.id != 0, c.ended
	if !known {
		m.freeStream(c.kind.class()) // the other side does not know it
	}
	m.mu.Unlock()
	if !known || ended {
		return
	}
	n := 0
	if reset {
		n = 1
	}
	_ = m.send(muxEnd, c.id, n) // unnecessary if the session has ended
	if !c.theirs {
		m.mu.Lock()
		m.freeStream(c.kind.class()) // after the end frame: the other side counts the streams that it knows
		m.mu.Unlock()
	}
}
