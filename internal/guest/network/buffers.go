//go:build linux

package network

import (
	"os"
	"sync"
	"sync/atomic"
)

// The kernel's buffers of a connection inside, as {least, first, most}: one that neither side reads holds no more than
// the first size. While programs read, the kernel makes buffers larger, up to the last size. gVisor's own first size is
// 1 MB, with which a thousand connections could hold more than the sandbox may use.
const (
	tcpReceive = "/proc/sys/net/ipv4/tcp_rmem"
	tcpSend    = "/proc/sys/net/ipv4/tcp_wmem"

	fewReceive, fewSend   = "4096 32768 1048576", "4096 32768 262144"
	manyReceive, manySend = "4096 32768 65536", "4096 32768 65536"
	// The sizes of many hold while more than manyOpen connections are open, and until there are fewOpen.
	manyOpen, fewOpen = 32, 16
	// manySendBuffer is the send buffer of the guest for each of many connections.
	manySendBuffer = 16 << 10
)

// bufferSizes sets the sizes of buffers by the number of connections. Where it is not permitted, the kernel is one that
// counts buffers as memory of the sandbox, and makes them small when memory is short.
type bufferSizes struct {
	open atomic.Int32 // connections that are copied

	mu   sync.Mutex
	many bool // guarded by mu
}

// reset sets the sizes, which are not part of a snapshot.
func (b *bufferSizes) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.set()
}

// count counts connections. It reports whether there are many.
func (b *bufferSizes) count(n int32) bool {
	open := b.open.Add(n)
	if n > 0 && open == manyOpen+1 || n < 0 && open == fewOpen {
		b.mu.Lock()
		defer b.mu.Unlock()
		if open := b.open.Load(); b.many && open <= fewOpen || !b.many && open > manyOpen {
			b.many = !b.many
			b.set()
		}
	}
	return open > manyOpen
}

// set sets the sizes for sockets that are made from now on, and the bounds of all. Preconditions: mu is held.
func (b *bufferSizes) set() {
	receive, send := fewReceive, fewSend
	if b.many {
		receive, send = manyReceive, manySend
	}
	_ = os.WriteFile(tcpReceive, []byte(receive), 0) // see above
	_ = os.WriteFile(tcpSend, []byte(send), 0)
}
