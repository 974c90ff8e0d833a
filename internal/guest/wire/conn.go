package wire

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync"
)

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

// write writes a frame, and before the first the opening, in one piece: each write on its own costs a wake-up on the other side.
// When the stream is closed while the link is full, it returns, and what the other side must have for the sake of the others follows later.
func (c *conn) write(typ byte, n int, data []byte) error {
	return c.compose(func(b []byte) ([]byte, error) { return append(appendHead(b, typ, c.id, n), data...), nil })
}

// fill writes frames of so many bytes each that a function appends, for which there is credit. A large message is not copied twice then.
func (c *conn) fill(sizes []int, data func(b []byte, i int) ([]byte, error)) error {
	return c.compose(func(b []byte) (_ []byte, err error) {
		for i, n := range sizes {
			if b, err = data(appendHead(b, muxData, c.id, n), i); err != nil {
				return nil, err
			}
		}
		return b, nil
	})
}

func (c *conn) compose(frames func(b []byte) ([]byte, error)) error {
	m := c.m
	opening, err := m.begin(c)
	if err != nil {
		return err
	}
	b := m.out[:0]
	if opening {
		b = appendHead(b, muxOpen, c.id, 0)
	}
	if b, err = frames(b); err != nil {
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
