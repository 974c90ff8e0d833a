package carrier

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash/crc32"
)

// kind is the kind of a frame.
type kind byte

const (
	// hello opens a connection: offset is where the other end continues to send.
	hello kind = iota + 1
	// resume answers a hello, and also reports a gap: offset is where the other end continues to send.
	resume
	// data carries bytes; offset is the position of the first one.
	data
	// ack carries the number of consumed bytes, which every frame has. offset is where the sender will continue, so
	// that the other end notices what is missing.
	ack
	// ping asks for an ack, and for another one when what was received is consumed. offset is that of ack.
	ping
)

// frame is one unit of the protocol.
type frame struct {
	kind     kind
	conn     uint64
	offset   uint64
	consumed uint64
	payload  []byte
}

var magic = []byte("\xf7rc1")

// The layout of the header: magic, kind, connection, offset, consumed, length, checksum of the payload, checksum of the
// header.
const (
	atKind     = 4
	atConn     = 8
	atOffset   = 16
	atConsumed = 24
	atLength   = 32
	atSum      = 36
	atMAC      = 40
	headerSize = 48
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// codec encodes and decodes frames with the key of a sandbox.
type codec struct{ key []byte }

// direction separates the frames of both ends, so that an echo of a frame is invalid.
const (
	fromHost  = 'h'
	fromGuest = 'g'
)

func newCodec(token []byte, direction byte) codec {
	m := hmac.New(sha256.New, token)
	m.Write([]byte{'c', direction})
	return codec{m.Sum(nil)}
}

func (c codec) mac(header []byte) []byte {
	m := hmac.New(sha256.New, c.key)
	m.Write(header[:atMAC])
	return m.Sum(nil)[:headerSize-atMAC]
}

// encode appends a frame to b.
func (c codec) encode(b []byte, f frame) []byte {
	start := len(b)
	b = append(b, make([]byte, headerSize)...)
	h := b[start:]
	copy(h, magic)
	h[atKind] = byte(f.kind)
	binary.BigEndian.PutUint64(h[atConn:], f.conn)
	binary.BigEndian.PutUint64(h[atOffset:], f.offset)
	binary.BigEndian.PutUint64(h[atConsumed:], f.consumed)
	binary.BigEndian.PutUint32(h[atLength:], uint32(len(f.payload)))
	binary.BigEndian.PutUint32(h[atSum:], crc32.Checksum(f.payload, castagnoli))
	copy(h[atMAC:], c.mac(h))
	return append(b, f.payload...)
}

// decoder finds the frames in a stream of bytes of which parts may be missing.
type decoder struct {
	codec
	buf []byte
}

// write appends bytes and calls handle for each complete frame. The payload is valid during the call.
func (d *decoder) write(p []byte, handle func(frame)) {
	d.buf = append(d.buf, p...)
	rest := d.buf
	for {
		var n int
		if rest, n = d.next(rest); n < 0 {
			break
		}
		if len(rest) < headerSize+n {
			// The rest of the frame may be lost: a later frame shows that.
			later, k := d.next(rest[headerSize:])
			if k < 0 {
				break
			}
			rest = later
			continue
		}
		f := frame{
			kind:     kind(rest[atKind]),
			conn:     binary.BigEndian.Uint64(rest[atConn:]),
			offset:   binary.BigEndian.Uint64(rest[atOffset:]),
			consumed: binary.BigEndian.Uint64(rest[atConsumed:]),
			payload:  rest[headerSize : headerSize+n],
		}
		if crc32.Checksum(f.payload, castagnoli) != binary.BigEndian.Uint32(rest[atSum:]) {
			rest = rest[1:] // a part of the payload is missing, and the next frame may have begun in it
			continue
		}
		handle(f)
		rest = rest[headerSize+n:]
	}
	d.buf = append(d.buf[:0], rest...)
}

// next returns b from the next valid header on, and the length of its payload. Without a header, n is -1, and rest is
// what may be the beginning of one.
func (d *decoder) next(b []byte) (rest []byte, n int) {
	for {
		i := bytes.Index(b, magic)
		if i < 0 {
			return b[max(0, len(b)-len(magic)+1):], -1
		}
		b = b[i:]
		if len(b) < headerSize {
			return b, -1
		}
		n := binary.BigEndian.Uint32(b[atLength:])
		if n <= maxPayload && hmac.Equal(d.mac(b), b[atMAC:headerSize]) {
			return b, int(n)
		}
		b = b[1:]
	}
}
