// Package wire is the protocol between a host and the guest in a sandbox.
//
// The layers, from the bottom up: a Link finds the beginning of an attachment on a byte stream that outlives
// attachments; a Session multiplexes streams over one attachment (mux.go); a Stream carries calls, one after the other,
// as length-prefixed protobuf messages (wire.proto). Both sides may open streams, and both may call.
//
// An attachment can be replaced at any time. A host that attaches writes the sandbox's token and a Hello. The guest
// drops the attachment it was reading, answers with the token and a Welcome that repeats the nonce of the Hello, and
// both sides start anew after that point. So the bytes of an incomplete frame, left in a pipe by a killed program or by
// a copied sandbox, are never read as a message.
package wire

//go:generate make -C ../../.. generate

// Protocol is the protocol version of this build, OldestProtocol the oldest version that it accepts.
const (
	Protocol       = 2
	OldestProtocol = 2
)

const (
	// MaxFrame bounds one message, so that a broken or hostile peer cannot cause unbounded allocations. Bulk data is
	// sent in chunks far below it.
	MaxFrame = 8 << 20
	// Chunk is the size in which bulk data is sent: large enough that copying dominates its cost, small enough that it
	// does not delay a ping.
	Chunk = 240 << 10
	// MaxInlineCode is the largest code that is sent within a Cell message.
	MaxInlineCode = 1 << 20
	// MaxCode bounds the code of one cell. Code is copied several times on its way, and Python needs several times its
	// size to compile it: in a sandbox of 512 MiB, 100 MB of code got the interpreter OOM-killed, and its state was
	// lost.
	MaxCode = 16 << 20
)
