// Package carrier carries the guest's byte stream over the standard input and output of a remote process, as cloud
// services offer them. Such a service transports messages and loses some: a call that sends input can fail although the
// input arrived, arrive late, or arrive twice; output that nobody reads is dropped, also in the middle of a frame.
//
// Both ends number the bytes they send, keep them until the other end has consumed them, and repeat them from the
// position that the other end names after a connection was opened again. So the layers above see one stream that is
// complete and in order, and a cell does not notice that a connection broke. At most window bytes are on their way,
// because a service drops output that is not read fast enough.
//
// A frame has a checksum that is keyed with the token of the sandbox. An end that lost its place looks for the next
// valid frame. Output of code in the sandbox is never taken for a frame, because the code does not know the token.
//
// A connection has a number. A host that attaches uses a higher one than all before, and both ends forget what an
// earlier host has left. The token and the Hello of package wire then begin the new attachment.
package carrier

import "time"

const (
	// window is the number of bytes that may be sent and not consumed. It is less than what services keep of output,
	// and enough for 20 MB/s over a link with 200 ms.
	window = 4 << 20
	// minWindow replaces window where a service loses output, and growth is added for each such window that arrived. A
	// service may keep as little as 32 KiB of what nobody has read yet.
	minWindow = 16 << 10
	growth    = 4 << 10
	// maxPayload is the size of a frame's payload. maxBatch is the size of one message of the service.
	maxPayload = 256 << 10
	maxBatch   = 1 << 20
	// ackAfter is the number of consumed bytes after which the other end is told, although there is nothing to send.
	ackAfter = window / 4
	// silence is how long nothing may arrive before the host asks the guest for a sign of life, and twice that before it
	// opens a new connection. A connection that a middle box has dropped looks like a quiet one.
	silence = 10 * time.Second
	// repair is how long a requested repetition may not arrive before it is requested again.
	repair = time.Second
	// firstReminder and maxReminder are how long the guest waits for an ack before it asks for one, the first time and
	// later.
	firstReminder = 300 * time.Millisecond
	maxReminder   = 10 * time.Second
)
