package egress

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// specialPrefixes are the prefixes of the IANA special-purpose address registries, multicast, and addresses that clouds
// use for metadata. IPv6 addresses outside 2000::/3 are denied as a whole.
var specialPrefixes = func() (list []specialPrefix) {
	for _, s := range []struct{ what, prefixes string }{
		{"this network", "0.0.0.0/8"},
		{"private", "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16"},
		{"shared by a provider (metadata services of some clouds)", "100.64.0.0/10"},
		{"loopback", "127.0.0.0/8"},
		{"link-local (metadata services)", "169.254.0.0/16"},
		{"IETF protocol assignments", "192.0.0.0/24"},
		{"documentation", "192.0.2.0/24 198.51.100.0/24 203.0.113.0/24"},
		{"AS112, AMT and 6to4 relays", "192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.175.48.0/24"},
		{"benchmarking", "198.18.0.0/15"},
		{"multicast", "224.0.0.0/4"},
		{"reserved or broadcast", "240.0.0.0/4"},
		{"a cloud's internal service", "168.63.129.16/32"},
		{"unspecified, loopback or IPv4-compatible", "::/96"},
		{"NAT64", "64:ff9b::/96 64:ff9b:1::/48"},
		{"discard-only", "100::/64 100:0:0:1::/64"},
		{"Teredo and IETF protocol assignments", "2001::/23"},
		{"documentation", "2001:db8::/32 3fff::/20"},
		{"6to4", "2002::/16"},
		{"AS112", "2620:4f:8000::/48"},
		{"segment routing", "5f00::/16"},
		{"private (metadata services of some clouds)", "fc00::/7"},
		{"link-local", "fe80::/10"},
		{"site-local", "fec0::/10"},
		{"multicast", "ff00::/8"},
	} {
		for _, p := range strings.Fields(s.prefixes) {
			list = append(list, specialPrefix{netip.MustParsePrefix(p), s.what})
		}
	}
	return list
}()

type specialPrefix struct {
	netip.Prefix
	what string
}

var globalUnicast6 = netip.MustParsePrefix("2000::/3")

// FloorOptions are the operator's part of the floor.
type FloorOptions struct {
	Except    []netip.Prefix          // network.floor_except: special addresses that rules may allow
	Listeners func() []netip.AddrPort // listeners of this program; no exception opens them
	HostAddrs func() ([]netip.Addr, error)
}

// Floor denies addresses that no rule can open: special ones, those of this host, and our own listeners.
type Floor struct {
	options FloorOptions

	mu      sync.Mutex
	addrs   map[netip.Addr]bool // of this host
	err     error
	expires time.Time
}

// hostAddrsTTL bounds how long an address that the host received is unknown. Reading them takes about 0.1 ms.
const hostAddrsTTL = 5 * time.Second

// NewFloor returns a floor.
func NewFloor(o FloorOptions) *Floor {
	if o.HostAddrs == nil {
		o.HostAddrs = interfaceAddrs
	}
	return &Floor{options: o}
}

func interfaceAddrs() (list []netip.Addr, err error) {
	all, err := net.InterfaceAddrs()
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(n.IP); ok {
				list = append(list, addr.Unmap())
			}
		}
	}
	return list, err
}

// Denied returns why an address is denied, or "".
func (f *Floor) Denied(addr netip.Addr, port uint16) string {
	addr = addr.Unmap().WithZone("")
	own, err := f.isOwn(addr)
	if err != nil {
		return fmt.Sprintf("the addresses of this host cannot be read: %v", err)
	}
	if (own || addr.IsUnspecified()) && f.listens(addr, port) {
		return fmt.Sprintf("%s port %d is a listener of recluse", addr, port)
	}
	for _, p := range f.options.Except {
		if p.Contains(addr) {
			return f.deniedInside(addr, port)
		}
	}
	switch {
	case own:
		return fmt.Sprintf("%s is an address of the host", addr)
	case !addr.IsValid():
		return "the address is invalid"
	}
	for _, p := range specialPrefixes {
		if p.Contains(addr) {
			return fmt.Sprintf("%s is not a public address: %s (%s)", addr, p.what, p.Prefix)
		}
	}
	if addr.Is6() && !globalUnicast6.Contains(addr) {
		return fmt.Sprintf("%s is not a public address: not global unicast", addr)
	}
	return ""
}

// deniedInside compares the IPv4 address in an IPv6 address, because a translator sends packets there.
func (f *Floor) deniedInside(addr netip.Addr, port uint16) string {
	inner := embedded(addr)
	if !inner.IsValid() || addr.IsLoopback() || addr.IsUnspecified() {
		return ""
	}
	if why := f.Denied(inner, port); why != "" {
		return fmt.Sprintf("%s contains an IPv4 address: %s", addr, why)
	}
	return ""
}

var (
	compatible4 = netip.MustParsePrefix("::/96")
	nat64       = netip.MustParsePrefix("64:ff9b::/96")
	nat64Local  = netip.MustParsePrefix("64:ff9b:1::/48")
	sixToFour   = netip.MustParsePrefix("2002::/16")
	teredo      = netip.MustParsePrefix("2001::/32")
)

// embedded returns the IPv4 address to which translators and tunnels send packets for an IPv6 address.
func embedded(addr netip.Addr) netip.Addr {
	b := addr.As16()
	switch {
	case compatible4.Contains(addr), nat64.Contains(addr), nat64Local.Contains(addr):
		// RFC 6052 allows other positions in longer prefixes of 64:ff9b:1::/48; a translator with /96 is the usual one.
		return netip.AddrFrom4([4]byte(b[12:16]))
	case sixToFour.Contains(addr):
		return netip.AddrFrom4([4]byte(b[2:6]))
	case teredo.Contains(addr):
		return netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]})
	}
	return netip.Addr{}
}

// isOwn reports whether addr is an address of this host.
func (f *Floor) isOwn(addr netip.Addr) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); now.After(f.expires) {
		list, err := f.options.HostAddrs()
		f.addrs, f.err = make(map[netip.Addr]bool, len(list)), err
		if err == nil { // else the next connection tries again
			f.expires = now.Add(hostAddrsTTL)
		}
		for _, a := range list {
			f.addrs[a.WithZone("")] = true
		}
	}
	return f.addrs[addr] || addr.IsLoopback(), f.err
}

// listens reports whether one of our listeners is reached at an address of this host.
func (f *Floor) listens(addr netip.Addr, port uint16) bool {
	if f.options.Listeners == nil {
		return false
	}
	for _, l := range f.options.Listeners() {
		at := l.Addr().Unmap()
		if l.Port() == port && (at == addr || at.IsUnspecified() || addr.IsUnspecified()) {
			return true
		}
	}
	return false
}
