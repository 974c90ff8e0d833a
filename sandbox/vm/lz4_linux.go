package vm

import (
	"encoding/binary"
	"errors"
)

// lz4Magic begins the legacy format of LZ4, in which kernels are compressed.
const lz4Magic = "\x02\x21\x4c\x18"

// lz4Block is the most that a block of the legacy format contains.
const lz4Block = 8 << 20

var errLZ4 = errors.New("invalid LZ4 data")

// unpackLZ4 decompresses data in the legacy format of LZ4: the magic, then blocks, each after its compressed size.
func unpackLZ4(data []byte) (out []byte, err error) {
	for data = data[len(lz4Magic):]; len(data) >= 4; {
		size := int(binary.LittleEndian.Uint32(data))
		if data = data[4:]; size > len(data) {
			return nil, errLZ4
		}
		if out, err = appendLZ4(out, data[:size]); err != nil {
			return nil, err
		}
		data = data[size:]
	}
	return out, nil
}

// appendLZ4 decompresses one block, which is a sequence of literals, each followed by a copy of earlier output.
func appendLZ4(out, in []byte) ([]byte, error) {
	from := len(out)
	// length returns a length that begins in 4 bits and continues in further bytes while they are 255.
	length := func(n int) (int, bool) {
		if n < 15 {
			return n, true
		}
		for len(in) > 0 {
			b := in[0]
			n, in = n+int(b), in[1:]
			if b != 255 {
				return n, true
			}
		}
		return 0, false
	}
	for len(in) > 0 {
		token := int(in[0])
		in = in[1:]
		n, ok := length(token >> 4)
		if !ok || n > len(in) || len(out)-from+n > lz4Block {
			return nil, errLZ4
		}
		out, in = append(out, in[:n]...), in[n:]
		if len(in) == 0 { // the last sequence has no copy
			return out, nil
		}
		if len(in) < 2 {
			return nil, errLZ4
		}
		back := int(binary.LittleEndian.Uint16(in))
		in = in[2:]
		n, ok = length(token & 15)
		n += 4
		if !ok || back == 0 || back > len(out)-from || len(out)-from+n > lz4Block {
			return nil, errLZ4
		}
		for range n { // the copy may overlap with its own output
			out = append(out, out[len(out)-back])
		}
	}
	return out, nil
}
