// Package kernel is the common part of the live interpreters of all languages: the frames between guest and
// interpreter, the shared page of memory, and the interface that each language implements.
//
// The guest starts a kernel with six descriptors: 0 is /dev/null, 1 and 2 are pipes for output of C code and child
// processes, 3 and 4 are the control pipes to and from the interpreter, and 5 is the file of a Page. The first frame on
// 3 is the source of the kernel. The following frames are listed below.
package kernel

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Kernel is the interpreter of one language.
type Kernel interface {
	// Language returns the name of the language, as requested by cells.
	Language() string
	// Find returns the path of the interpreter's program in this sandbox, or "" if there is none.
	Find() string
	// Command returns the arguments of the program, its own name first.
	Command(path string) []string
	// Source returns the code that the program reads from its first frame and runs.
	Source() []byte
}

// The types of frames. A payload with a header is [u32 length][JSON header][body].
const (
	// To the interpreter.
	TypeSource  = 'K' // the source of the kernel
	TypeExecute = 'X' // header: id, stdin, argv, env, trace; body: the code
	TypeReply   = 'R' // header: call, ok, error; body: the reply to a call
	TypeRenew   = 'P' // header: env, unset, reseed, entropy

	// From the interpreter.
	TypeHello   = 'H' // JSON: version
	TypeOutput  = 'O' // [u32 cell][u8 stream][bytes]
	TypeDisplay = 'D' // header: id, kind; body: a MIME bundle
	TypeCall    = 'C' // header: id, call, name; body: the payload
	TypeEnd     = 'E' // JSON: how the cell ended
	TypeAck     = 'A' // JSON: answer to a renew
)

// AppendFrame appends a frame to b: the length of the rest, the type, the payload.
func AppendFrame(b []byte, typ byte, payload ...[]byte) []byte {
	size := 1
	for _, p := range payload {
		size += len(p)
	}
	if cap(b)-len(b) < size+4 {
		b = append(make([]byte, 0, len(b)+size+4), b...)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(size))
	b = append(b, typ)
	for _, p := range payload {
		b = append(b, p...)
	}
	return b
}

// ReadFrame reads a frame of at most limit bytes. If the payload fits into buf, it is stored there and is valid until
// buf is used again.
func ReadFrame(r io.Reader, buf []byte, limit int) (typ byte, payload []byte, err error) {
	if cap(buf) < 5 {
		buf = make([]byte, 4<<10)
	}
	head := buf[:5]
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, nil, err
	}
	size := binary.LittleEndian.Uint32(head)
	typ = head[4]
	if size == 0 || uint64(size) > uint64(limit) {
		return 0, nil, fmt.Errorf("invalid frame size %d", size)
	}
	size--
	if uint32(cap(buf)) < size {
		buf = make([]byte, size)
	}
	payload = buf[:size]
	if _, err := io.ReadFull(r, payload); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return typ, payload, nil
}

// Header splits a payload into header and body.
func Header(payload []byte) (header, body []byte, err error) {
	if len(payload) < 4 {
		return nil, nil, fmt.Errorf("missing header in a frame of %d bytes", len(payload))
	}
	n := binary.LittleEndian.Uint32(payload)
	if uint64(n) > uint64(len(payload)-4) {
		return nil, nil, fmt.Errorf("invalid header size %d in a frame of %d bytes", n, len(payload))
	}
	return payload[4 : 4+n], payload[4+n:], nil
}
