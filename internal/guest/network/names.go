//go:build linux

package network

import (
	"net/netip"
	"sync"
)

// maxNames bounds the names that have addresses. Half of them are for names that are allowed, so that code that tries
// many denied names cannot use up the table.
const maxNames = 8192

// pool is the range of addresses of names: it is reserved for benchmarks (RFC 2544), so no server uses it.
var pool = netip.MustParsePrefix("198.18.0.0/15")

// own is the address of lo. Names have the addresses above it.
var own = netip.MustParseAddr("198.18.0.1")

// names gives each name an address. An address is never given to another name: code may keep it for as long as it runs.
type names struct {
	mu     sync.Mutex
	byName map[string]netip.Addr // guarded by mu
	byAddr map[netip.Addr]string // guarded by mu
	denied int                   // guarded by mu; names that were denied when they got their address
	last   netip.Addr            // guarded by mu
	listen *listeners            // guarded by mu; listen on new addresses; nil: connections are redirected
}

func newNames() *names {
	return &names{byName: map[string]netip.Addr{}, byAddr: map[netip.Addr]string{}, last: own}
}

// useListeners gives names addresses of loopbackPool, on which l listens. No name may have an address yet.
func (n *names) useListeners(l *listeners) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listen, n.last = l, loopbackPool.Addr()
}

// addr returns the address of a name, and false if there is none left.
func (n *names) addr(name string, denied bool) (netip.Addr, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if a, ok := n.byName[name]; ok {
		return a, true
	}
	most := maxNames
	if n.listen != nil {
		most = n.listen.maxNames()
	}
	if len(n.byName) >= most || denied && n.denied >= most/2 {
		return netip.Addr{}, false
	}
	next := n.last.Next()
	if n.listen != nil && !n.listen.add(next) {
		return netip.Addr{}, false
	}
	if denied {
		n.denied++
	}
	n.last = next
	n.byName[name], n.byAddr[next] = next, name
	return next, true
}

// has reports whether a name has an address.
func (n *names) has(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, ok := n.byName[name]
	return ok
}

// name returns the name of an address.
func (n *names) name(a netip.Addr) (string, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	name, ok := n.byAddr[a]
	return name, ok
}
