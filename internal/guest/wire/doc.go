// Package wire is the protocol between a host and the guest in a sandbox.
//
// From the bottom up: a Link finds the beginning of an attachment on a byte stream
// that outlives attachments; a Session multiplexes streams over one attachment
// (mux.go); a Stream carries calls, one after the other, as length-prefixed
// protobuf messages (wire.proto). Both sides may open streams and both may call.
//
// Attachments are disposable. Whoever attaches writes the sandbox's token and a
// Hello; the guest drops whatever it was reading, answers with the token and a
// Welcome that repeats the Hello's nonce, and both begin afresh behind that point.
// So bytes of a half-written frame, left in a pipe by a program that was killed or
// by a sandbox that was copied, can never be taken for a message.
package wire

//go:generate make -C ../../.. generate

// Protocol is the version this build speaks, OldestProtocol the oldest it understands.
const (
	Protocol       = 2
	OldestProtocol = 2
)

const (
	// MaxFrame bounds one message, so that a broken or hostile peer cannot make us
	// allocate at will. Bulk data travels in chunks far below it.
	MaxFrame = 8 << 20
	// Chunk is the size in which bulk data is sent: large enough that its cost is
	// the copy, small enough that a ping is not kept waiting behind it.
	Chunk = 240 << 10
	// MaxInlineCode is the largest code sent within a Cell message itself.
	MaxInlineCode = 1 << 20
	// MaxCode bounds the code of one cell. Code is copied a few times on its way, and Python needs several times its size to compile it:
	// 100 MB got the interpreter killed, and lost its state, in a sandbox of 512 MiB.
	MaxCode = 16 << 20
)
