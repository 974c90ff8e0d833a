//go:build linux

package network

import (
	"errors"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// loopbackPool is the range of addresses of names where the guest may not add an address to lo. All of 127.0.0.0/8 is
// local without one.
var loopbackPool = netip.MustParsePrefix("127.64.0.0/10")

// maxListeners bounds the sockets at addresses of names: each costs a descriptor and some 5 KB.
const maxListeners = 2048

// listeners are the sockets at the addresses of names, where the guest may not redirect connections. Each address has
// its own, so that a server inside can still use the same ports of 127.0.0.1.
type listeners struct {
	serve func(*net.TCPListener)

	mu    sync.Mutex
	ports []uint16                            // guarded by mu
	addrs []netip.Addr                        // guarded by mu
	open  map[netip.AddrPort]*net.TCPListener // guarded by mu
}

func newListeners(serve func(*net.TCPListener)) *listeners {
	return &listeners{serve: serve, open: map[netip.AddrPort]*net.TCPListener{}}
}

// setPorts replaces the ports of all addresses.
func (l *listeners) setPorts(ports []uint16) {
	l.mu.Lock()
	defer l.mu.Unlock()
	wanted := map[uint16]bool{}
	for _, p := range ports {
		wanted[p] = true
	}
	for at, listener := range l.open {
		if !wanted[at.Port()] {
			_ = listener.Close() // fails only if it is closed
			delete(l.open, at)
		}
	}
	l.ports = ports
	for _, a := range l.addrs {
		if !l.listen(a) {
			return // the last addresses get no listener, so connections to them are refused
		}
	}
}

// add listens on the ports of an address. It reports false if there are too many listeners.
func (l *listeners) add(a netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.listen(a) {
		return false
	}
	l.addrs = append(l.addrs, a)
	return true
}

// listen opens the missing listeners of an address. A port that a server inside uses on all addresses is left to it.
//
// Preconditions: mu is held.
func (l *listeners) listen(a netip.Addr) bool {
	for _, p := range l.ports {
		at := netip.AddrPortFrom(a, p)
		if l.open[at] != nil {
			continue
		}
		if len(l.open) >= maxListeners {
			return false
		}
		listener, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(at))
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		if err != nil {
			return false
		}
		l.open[at] = listener
		go l.serve(listener)
	}
	return true
}

// maxNames returns how many names can have addresses with these ports.
func (l *listeners) maxNames() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return min(maxNames, maxListeners/max(1, len(l.ports)))
}
