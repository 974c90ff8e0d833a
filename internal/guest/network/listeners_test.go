//go:build linux

package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// listening returns names with listeners on ports, and a function that reports who answers at an address.
func listening(t *testing.T, ports ...uint16) (*names, *listeners, func(at netip.AddrPort) string) {
	t.Helper()
	l := newListeners(func(l *net.TCPListener) {
		acceptAll(l, func(c *net.TCPConn) {
			fmt.Fprint(c, c.LocalAddr())
			c.Close()
		})
	})
	l.setPorts(ports)
	t.Cleanup(func() { l.setPorts(nil) })
	n := newNames()
	n.useListeners(l)
	return n, l, func(at netip.AddrPort) string {
		t.Helper()
		c, err := net.DialTimeout("tcp4", at.String(), 5*time.Second)
		if errors.Is(err, unix.ECONNREFUSED) {
			return "refused"
		}
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		b := make([]byte, 100)
		k, _ := c.Read(b)
		return string(b[:k])
	}
}

func TestNamesHaveListeners(t *testing.T) {
	n, l, answer := listening(t, 38443)
	a, ok := n.addr("a.test", false)
	if !ok || !loopbackPool.Contains(a) {
		t.Fatal(a, ok)
	}
	expect := func(a netip.Addr, port uint16, open bool) {
		t.Helper()
		at := netip.AddrPortFrom(a, port)
		want := "refused"
		if open {
			want = at.String()
		}
		if got := answer(at); got != want {
			t.Errorf("%s: %q, want %q", at, got, want)
		}
	}
	expect(a, 38443, true)
	expect(a, 38080, false)
	expect(a.Next(), 38443, false)
	l.setPorts([]uint16{38080})
	expect(a, 38443, false)
	expect(a, 38080, true)
	b, _ := n.addr("b.test", true)
	expect(b, 38080, true)
	server, err := net.Listen("tcp4", "127.0.0.1:38080") // a server inside
	if err != nil {
		t.Fatal(err)
	}
	server.Close()
}

func TestAPortThatAServerUsesIsLeftToIt(t *testing.T) {
	server, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	n, _, answer := listening(t, addrPort(server.Addr()).Port(), 38444)
	a, ok := n.addr("a.test", false)
	if at := netip.AddrPortFrom(a, 38444); !ok || answer(at) != at.String() {
		t.Errorf("%s: %v", a, ok)
	}
}

func TestListenersAreBounded(t *testing.T) {
	ports := make([]uint16, 64)
	for i := range ports {
		ports[i] = uint16(38500 + i)
	}
	n, l, _ := listening(t, ports...)
	names := func(denied bool) (count int) {
		for i := range maxListeners {
			if _, ok := n.addr(fmt.Sprintf("%t%d.test", denied, i), denied); !ok {
				return count
			}
			count++
		}
		return count
	}
	if denied, allowed := names(true), names(false); denied != 16 || allowed != 16 {
		t.Errorf("%d denied and %d allowed names", denied, allowed)
	}
	l.setPorts(append(ports, 38600)) // the names of before keep what they have, as far as there is room
	if len(l.open) > maxListeners {
		t.Errorf("%d listeners", len(l.open))
	}
}
