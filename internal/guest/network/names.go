//go:build linux

package network

import (
	"net/netip"
	"sync"
)

const (
	// maxNames bounds the names that have addresses. Half of them are for names that are allowed, so that code that tries
	// many denied names cannot use up the table.
	maxNames  = 8192
	maxDenied = maxNames / 2
)

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
}

func newNames() *names {
	return &names{byName: map[string]netip.Addr{}, byAddr: map[netip.Addr]string{}, last: own}
}

// addr returns the address of a name, and false if there is none left.
func (n *names) addr(name string, denied bool) (netip.Addr, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if a, ok := n.byName[name]; ok {
		return a, true
	}
	if len(n.byName) >= maxNames || denied && n.denied >= maxDenied {
		return netip.Addr{}, false
	}
	if denied {
		n.denied++
	}
	n.last = n.last.Next()
	n.byName[name], n.byAddr[n.last] = n.last, name
	return n.last, true
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
