//go:build linux

package network

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/wire"
)

const (
	// acceptPause is the wait after a failed accept, such as without a free descriptor.
	acceptPause = 10 * time.Millisecond
	// dialTimeout bounds a connection to a port inside.
	dialTimeout = 5 * time.Second
	// smallBuffer is the buffer of a connection that sends little, largeBuffer that of one that fills it. A connection
	// that the host does not read keeps its buffer, so no more than largeBuffers of them are large.
	smallBuffer, largeBuffer = 4 << 10, 64 << 10
	largeBuffers             = 64
	// tidyAfter is the time after the last connection until its garbage is returned to the kernel. Otherwise an idle
	// guest would keep 0.4 MB, because its heap is too small for the collector to run (bench --only network.memory).
	tidyAfter = time.Second
)

// Host is the host at the other end of the stream.
type Host interface {
	// Lookup asks whether a name may be used.
	Lookup(name string, o *wire.Owner) wire.Answer
	// Connect opens a stream for a connection and sends the request. It returns an error without an attached host.
	Connect(c *wire.Connect) (*wire.Stream, error)
}

// Network forwards connections.
type Network struct {
	host  Host
	find  func(pid int) string // returns the operation of a process
	names *names
	on    atomic.Bool

	lookups   lookups
	owners    owners
	lastOwner atomic.Int64 // pid of the process that last opened a connection
	buffers   sync.Pool    // of *[]byte of size largeBuffer
	large     atomic.Int32 // buffers in use
	sizes     bufferSizes
	tidying   *time.Timer // calls tidy

	mu        sync.Mutex
	port      int           // guarded by mu; to which connections are redirected; 0: none
	listeners *listeners    // guarded by mu; where connections cannot be redirected
	whyListed error         // guarded by mu; why they cannot
	proxies   [2]bool       // guarded by mu; which of the proxies listen
	asking    chan struct{} // slots for connections to proxies that have not said yet what they want
}

// ErrNoRedirection means that the policy requires every port, but the guest may not redirect connections.
var ErrNoRedirection = errors.New("connections cannot be redirected here, so only listed ports work")

// New returns a network that forwards nothing. find returns the operation of a process.
func New(host Host, find func(pid int) string) *Network {
	n := &Network{host: host, find: find, names: newNames(), asking: make(chan struct{}, maxAsking)}
	n.buffers.New = func() any { b := make([]byte, largeBuffer); return &b }
	n.tidying = time.AfterFunc(tidyAfter, n.tidy)
	n.tidying.Stop()
	return n
}

// tidy returns garbage to the kernel, unless connections are open: it is called again after the last one.
func (n *Network) tidy() {
	if n.sizes.open.Load() == 0 {
		debug.FreeOSMemory()
	}
}

// ServeDNS answers DNS queries from now on. Connections are forwarded after Apply.
func (n *Network) ServeDNS() error {
	at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), dnsPort)
	udp, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return err
	}
	tcp, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(at))
	if err != nil {
		_ = udp.Close()
		return err
	}
	go n.serveUDP(udp)
	go n.serveTCP(tcp)
	return nil
}

// Apply switches the network on or off. It sets up the interface, the route and the redirection again, because a
// restored sandbox does not have them. If the guest may not redirect connections, it listens on the ports.
func (n *Network) Apply(on bool, ports []uint16) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	defer n.lookups.forget() // the policy may differ
	if !on {
		n.on.Store(false)
		return nil
	}
	if n.listeners == nil {
		err := n.redirect()
		if err != nil && n.port != 0 {
			return err
		}
		if err != nil { // not permitted, or a kernel without the tables
			n.whyListed = err
			n.listeners = newListeners(n.acceptListed)
			n.names.useListeners(n.listeners)
			_ = addAddress() // helps programs that ask for IPv4 addresses only; most runtimes do not permit it
		}
	}
	if n.listeners != nil {
		if len(ports) == 0 {
			return fmt.Errorf("%w: %w", ErrNoRedirection, n.whyListed)
		}
		n.listeners.setPorts(ports)
	}
	n.listenProxies()
	n.on.Store(true)
	return nil
}

// redirect redirects connections to a listener. Preconditions: mu is held.
func (n *Network) redirect() error {
	n.sizes.reset() // before the listener is made, whose connections inherit its sizes
	if n.port != 0 {
		return configure(n.port)
	}
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return fmt.Errorf("listen for connections: %w", err)
	}
	port := int(addrPort(l.Addr()).Port())
	if err := configure(port); err != nil {
		_ = l.Close() // fails only if it is closed
		return err
	}
	n.port = port
	go acceptAll(l, func(c *net.TCPConn) {
		go func() {
			to, err := originalDestination(c)
			if err != nil {
				reset(c)
				return
			}
			n.forward(c, to)
		}()
	})
	return nil
}

// acceptListed forwards the connections to one port of a name.
func (n *Network) acceptListed(l *net.TCPListener) {
	acceptAll(l, func(c *net.TCPConn) { go n.forward(c, addrPort(c.LocalAddr())) })
}

// acceptAll calls serve, which must not block for long, with each connection of a listener.
func acceptAll(l *net.TCPListener, serve func(*net.TCPConn)) {
	for {
		c, err := l.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			time.Sleep(acceptPause)
		default:
			serve(c)
		}
	}
}

// forward forwards a connection to an address until both directions have ended.
func (n *Network) forward(c *net.TCPConn, to netip.AddrPort) {
	if !n.on.Load() {
		reset(c)
		return
	}
	req := &wire.Connect{Name: to.Addr().String(), Port: uint32(to.Port())}
	if pool.Contains(to.Addr()) || loopbackPool.Contains(to.Addr()) {
		name, ok := n.names.name(to.Addr())
		if !ok {
			reset(c)
			return
		}
		req.Name = name
	}
	req.Owner = n.owner(socket{"tcp", addrPort(c.RemoteAddr())})
	st, err := n.host.Connect(req)
	if err != nil {
		reset(c)
		return
	}
	n.splice(c, c, st, func() error {
		if e := opened(st); e != nil {
			return errors.New(e.Message)
		}
		return nil
	})
}

// opened waits until the host has opened a connection. It returns nil if it has.
func opened(st *wire.Stream) *wire.Error {
	f := &wire.Frame{}
	if err := st.Receive(f); err != nil {
		return wire.Errorf("closing", "%v", err)
	}
	return f.GetError()
}

// Dial opens a connection to a port of 127.0.0.1 or ::1 for the host, and forwards it on the stream. Some programs that
// are told to listen on localhost listen on ::1 only.
func (n *Network) Dial(st *wire.Stream, port uint32) {
	to := strconv.FormatUint(uint64(port), 10)
	c, err := net.DialTimeout("tcp4", net.JoinHostPort("127.0.0.1", to), dialTimeout)
	if errors.Is(err, unix.ECONNREFUSED) {
		if six, failed := net.DialTimeout("tcp6", net.JoinHostPort("::1", to), dialTimeout); failed == nil {
			c, err = six, nil
		}
	}
	if err != nil {
		code := "unreachable"
		if errors.Is(err, unix.ECONNREFUSED) {
			code = "port_closed"
		}
		_ = st.Send(&wire.Frame{Body: &wire.Frame_Error{Error: wire.Errorf(code, "%v", err)}, Last: true})
		return
	}
	if st.Send(&wire.Frame{Body: &wire.Frame_Connected{Connected: &wire.Connected{}}}) != nil {
		_ = c.Close()
		return
	}
	client := c.(*net.TCPConn) //nolint:forcetypeassert // the network is TCP
	n.splice(client, client, st, nil)
}

// splice copies both directions. src is what the client sends. opened, if set, waits until the bytes of the other side
// follow.
func (n *Network) splice(c *net.TCPConn, src io.Reader, st *wire.Stream, opened func() error) {
	if n.sizes.count(1) {
		_ = c.SetWriteBuffer(manySendBuffer) // fails only if the connection is closed
	}
	defer func() {
		n.sizes.count(-1)
		n.tidying.Reset(tidyAfter)
	}()
	conn := st.Connection()
	var sending sync.WaitGroup
	sending.Go(func() {
		if err := n.send(conn, src); err != nil {
			conn.Reset()
			return
		}
		_ = conn.CloseWrite() // if it fails, the other direction reports it
	})
	var err error
	if opened != nil {
		err = opened()
	}
	if err == nil {
		_, err = conn.WriteTo(c)
	}
	if err != nil {
		reset(c)
		conn.Reset()
	} else {
		_ = c.CloseWrite() // fails if the client has reset the connection
	}
	sending.Wait()
	_ = c.Close()
	_ = conn.Close()
}

// send copies what a client sends. A connection that sends little needs only a small buffer.
func (n *Network) send(w io.Writer, src io.Reader) error {
	small := make([]byte, smallBuffer)
	buf, large := small, (*[]byte)(nil)
	defer func() {
		if large != nil {
			n.putLarge(large)
		}
	}()
	for {
		k, err := src.Read(buf)
		if k > 0 {
			if _, err := w.Write(buf[:k]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case k == len(buf) && large == nil:
			if large = n.getLarge(); large != nil {
				buf = *large
			}
		case k < smallBuffer && large != nil:
			n.putLarge(large)
			buf, large = small, nil
		}
	}
}

// getLarge returns a large buffer, or nil if too many are in use.
func (n *Network) getLarge() *[]byte {
	if n.large.Add(1) > largeBuffers {
		n.large.Add(-1)
		return nil
	}
	return n.buffers.Get().(*[]byte) //nolint:forcetypeassert // only New fills the pool
}

func (n *Network) putLarge(b *[]byte) {
	n.buffers.Put(b)
	n.large.Add(-1)
}

// reset closes a connection so that the client sees a reset.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0) // fails only if the connection is closed
	_ = c.Close()
}

func addrPort(a net.Addr) netip.AddrPort {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort()
	}
	return netip.AddrPort{}
}
