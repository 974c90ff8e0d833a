package wire

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// ErrTooLarge means that a message was not sent because it exceeds MaxFrame.
var ErrTooLarge = fmt.Errorf("frame limit of %d bytes exceeded", MaxFrame)

// Stream carries calls as length-prefixed messages. One goroutine may read while others write.
type Stream struct {
	*channel
	// released is set when the call is over. A late Close, for example when the caller's ctx ends, must not close the
	// channel, which may already serve the next call.
	released atomic.Bool
}

// channel is the part of a stream that outlives a call.
type channel struct {
	conn    *conn
	r       *bufio.Reader
	in      []byte   // reused between reads
	held    chunk    // the memory of the message returned last
	session *Session // keeps the channel after the call; nil: the channel is closed

	mu  sync.Mutex
	out []byte // guarded by mu; reused between writes
}

func newStream(c *conn, session *Session) *Stream {
	return &Stream{channel: &channel{conn: c, r: bufio.NewReaderSize(c, 4<<10), session: session}}
}

// Dedicate makes the stream carry this call only. It is for calls during which both sides send: when one side has ended
// the call, bytes of the other side may still be in transit.
func (s *Stream) Dedicate() { s.session = nil }

// Send sends messages, in one write if there is enough credit: in a sandbox, a write costs far more than its bytes.
func (s *Stream) Send(ms ...proto.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released.Load() {
		return io.ErrClosedPipe
	}
	if len(ms) == 0 {
		return nil
	}
	var buf [4]int
	sizes, all, fit := buf[:0], 0, true
	for _, m := range ms {
		size := 4 + proto.Size(m)
		sizes, all, fit = append(sizes, size), all+size, fit && size <= muxFrame
	}
	if fit && s.conn.claimAll(all) {
		return s.conn.writeFrames(sizes, func(b []byte, i int) ([]byte, error) { return AppendFrame(b, ms[i]) })
	}
	for _, m := range ms {
		if err := s.sendSlowly(m); err != nil {
			return err
		}
	}
	return nil
}

// sendSlowly sends one message in parts, as credit arrives.
//
// Preconditions: mu is held.
func (s *Stream) sendSlowly(m proto.Message) error {
	b, err := AppendFrame(s.out[:0], m)
	if err != nil {
		return err
	}
	if cap(b) <= 2*Chunk {
		s.out = b
	}
	_, err = s.conn.Write(b)
	return err
}

// RoomFor reports whether a message of n bytes can be sent without waiting for the other side to read earlier messages.
func (s *Stream) RoomFor(n int) bool { return s.conn.roomFor(n) }

// Receive reads one message into m. The content of m is a copy and may be kept, except for the data of an Output, which
// is valid until the next Receive: Output is bulk data, which callers pass on at once.
func (s *Stream) Receive(m proto.Message) error {
	b, err := s.next()
	if err != nil {
		return err
	}
	if f, ok := m.(*Frame); ok && shareOutput(f, b) {
		return nil
	}
	if err := proto.Unmarshal(b, m); err != nil {
		return fmt.Errorf("read message: %w", err)
	}
	return nil
}

// next returns the bytes of the next message, valid until the next call. Most messages have a frame of their own and
// are not copied.
func (s *Stream) next() ([]byte, error) {
	if s.r.Buffered() == 0 {
		s.conn.m.recycle(s.held)
		got, ok, err := s.conn.takeMessage()
		s.held = got
		if err != nil {
			return nil, err
		}
		if ok {
			return got.data[4:], nil
		}
	}
	b, err := readFrame(s.r, s.in, s.conn.maxMessage())
	if err == nil && cap(b) <= 2*Chunk {
		s.in = b
	}
	return b, err
}

// Field numbers in wire.proto of the fields that shareOutput reads.
const (
	frameOutput = 3

	outputStream  = 1
	outputOffset  = 2
	outputData    = 3
	outputSkipped = 4
)

// shareOutput decodes an Output without copying its data out of b, as proto.Unmarshal would. It returns false for other
// messages, and for an Output with unknown fields.
func shareOutput(f *Frame, b []byte) bool {
	num, typ, n := protowire.ConsumeTag(b)
	if n < 0 || num != frameOutput || typ != protowire.BytesType {
		return false
	}
	body, m := protowire.ConsumeBytes(b[n:])
	if m < 0 || n+m != len(b) {
		return false
	}
	o := &Output{}
	for len(body) > 0 {
		num, typ, n := protowire.ConsumeTag(body)
		if n < 0 {
			return false
		}
		body = body[n:]
		var v uint64
		switch {
		case num == outputData && typ == protowire.BytesType:
			o.Data, n = protowire.ConsumeBytes(body)
		case typ == protowire.VarintType:
			v, n = protowire.ConsumeVarint(body)
		default:
			return false
		}
		if n < 0 {
			return false
		}
		body = body[n:]
		switch num {
		case outputStream:
			o.Stream = uint32(v)
		case outputOffset:
			o.Offset = int64(v)
		case outputData:
		case outputSkipped:
			o.Skipped = int64(v)
		default:
			return false
		}
	}
	f.Body = &Frame_Output{Output: o}
	return true
}

// Release ends a call whose last frame has been read. The channel can serve the next call.
func (s *Stream) Release() {
	if s.released.Swap(true) {
		return
	}
	if s.session != nil && s.r.Buffered() == 0 && s.session.mux.keep(s.channel) {
		return
	}
	s.conn.Close()
}

// Close closes the stream, whatever the state of its call. After Release it does nothing.
func (s *Stream) Close() {
	if !s.released.Swap(true) {
		s.conn.Close()
	}
}

// AppendFrame appends the length-prefixed message to b.
func AppendFrame(b []byte, m proto.Message) ([]byte, error) {
	start := len(b)
	b = append(b, 0, 0, 0, 0)
	b, err := proto.MarshalOptions{}.MarshalAppend(b, m)
	if err != nil {
		return nil, fmt.Errorf("write message: %w", err)
	}
	size := len(b) - start - 4
	if size > MaxFrame {
		return nil, fmt.Errorf("write message of %d bytes: %w", size, ErrTooLarge)
	}
	binary.BigEndian.PutUint32(b[start:], uint32(size))
	return b, nil
}

// readFrame reads one length-prefixed message of at most limit bytes, into buf if that is large enough.
func readFrame(r io.Reader, buf []byte, limit uint32) ([]byte, error) {
	if cap(buf) < 4 {
		buf = make([]byte, 0, 512)
	}
	head := buf[:4]
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head)
	if size > limit {
		return nil, fmt.Errorf("read message of %d bytes: frame limit of %d bytes exceeded", size, limit)
	}
	if uint32(cap(buf)) < size {
		buf = make([]byte, size)
	}
	buf = buf[:size]
	if _, err := io.ReadFull(r, buf); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return buf, nil
}
