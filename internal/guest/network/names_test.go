//go:build linux

package network

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// policy is a host that allows names with the label ok, and counts look-ups.
type policy struct{ asked int }

func (p *policy) Lookup(name string, _ *wire.Owner) wire.Answer {
	p.asked++
	if len(name) > 3 && name[:3] == "ok." {
		return wire.Answer_ANSWER_ALLOWED
	}
	return wire.Answer_ANSWER_DENIED
}

func (*policy) Connect(*wire.Connect) (*wire.Stream, error) { return nil, net.ErrClosed }

func question(t *testing.T, name string, typ dnsmessage.Type) []byte {
	t.Helper()
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name + "."), Type: typ, Class: dnsmessage.ClassINET}},
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// ask returns the code of an answer and its address, if it has one.
func ask(t *testing.T, n *Network, name string, typ dnsmessage.Type) (dnsmessage.RCode, netip.Addr) {
	t.Helper()
	var m dnsmessage.Message
	if err := m.Unpack(n.reply(question(t, name, typ), socket{})); err != nil {
		t.Fatal(err)
	}
	if len(m.Answers) == 0 {
		return m.RCode, netip.Addr{}
	}
	return m.RCode, netip.AddrFrom4(m.Answers[0].Body.(*dnsmessage.AResource).A)
}

// The table is bounded: code that asks for many denied names gets SERVFAIL for new ones, and can still use those that
// are allowed. No address is used for two names.
func TestTheTableOfNamesIsBounded(t *testing.T) {
	n := New(&policy{}, func(int) string { return "" })
	n.on.Store(true)
	used := map[netip.Addr]string{}
	add := func(name string, want bool) {
		t.Helper()
		code, a := ask(t, n, name, dnsmessage.TypeA)
		if want != (code == dnsmessage.RCodeSuccess) || !want && code != dnsmessage.RCodeServerFailure {
			t.Fatalf("%s: %v", name, code)
		}
		if !want {
			return
		}
		if other, ok := used[a]; ok && other != name || !pool.Contains(a) || a == own {
			t.Fatalf("%s has the address %s of %q", name, a, other)
		}
		used[a] = name
	}
	for i := range maxNames / 2 {
		add(fmt.Sprintf("n%d.test", i), true)
	}
	add("more.test", false)
	add("n7.test", true)
	for i := range maxNames - maxNames/2 {
		add(fmt.Sprintf("ok.n%d.test", i), true)
	}
	add("ok.more.test", false)
	add("ok.n7.test", true)
	if len(used) != maxNames || len(n.names.byAddr) != maxNames || len(n.names.byName) != maxNames {
		t.Errorf("%d addresses, and %d and %d in the tables", len(used), len(n.names.byAddr), len(n.names.byName))
	}
}

// That a name is allowed holds for a while, but not after a change of the policy.
func TestAnAllowedNameIsRemembered(t *testing.T) {
	h := &policy{}
	n := New(h, func(int) string { return "" })
	n.on.Store(true)
	for i := range 3 {
		for _, typ := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA, 65, dnsmessage.TypeA} {
			if code, _ := ask(t, n, "ok.test", typ); code != dnsmessage.RCodeSuccess {
				t.Errorf("%v: %v", typ, code)
			}
		}
		if h.asked != 1+i {
			t.Errorf("the host was asked %d times", h.asked)
		}
		if err := n.Apply(false, nil); err != nil {
			t.Fatal(err)
		}
		n.on.Store(true)
	}
}

// The questions of one program for both kinds of addresses are one look-up, and its next attempt is another.
func TestBothKindsOfAddressesAreOneLookup(t *testing.T) {
	for _, on := range []bool{true, false} {
		h := &policy{}
		n := New(h, func(int) string { return "" })
		n.on.Store(on)
		for range 3 {
			for _, typ := range []dnsmessage.Type{dnsmessage.TypeAAAA, dnsmessage.TypeA} {
				code, a := ask(t, n, "denied.test", typ)
				if want := on && typ == dnsmessage.TypeA; want != a.IsValid() || on != (code == dnsmessage.RCodeSuccess) {
					t.Errorf("on %t, %v: %v %s", on, typ, code, a)
				}
			}
		}
		if h.asked > 3 {
			t.Errorf("on %t: the host was asked %d times", on, h.asked)
		}
	}
}

func FuzzDNS(f *testing.F) {
	for _, name := range []string{"ok.test", "denied.test", "localhost", "1.0.18.198.in-addr.arpa", "255.255.255.255.in-addr.arpa", "1.in-addr.arpa"} {
		for _, typ := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypePTR, 65, 255} {
			m := dnsmessage.Message{
				Header:      dnsmessage.Header{ID: 7},
				Questions:   []dnsmessage.Question{{Name: dnsmessage.MustNewName(name + "."), Type: typ, Class: dnsmessage.ClassINET}},
				Additionals: []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName("."), Class: 4096}, Body: &dnsmessage.OPTResource{}}},
			}
			b, err := m.Pack()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
			f.Add(b[:len(b)-5])
		}
	}
	f.Add([]byte("\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01")) // a name that points to itself
	f.Fuzz(func(t *testing.T, query []byte) {
		n := New(&policy{}, func(int) string { return "" })
		n.on.Store(true)
		reply := n.reply(query, socket{})
		if reply == nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(reply); err != nil {
			t.Fatalf("%q: %v", reply, err)
		}
		if !m.Response || m.ID != uint16(query[0])<<8|uint16(query[1]) || len(m.Answers) > 1 || len(reply) > dnsMaxUDP {
			t.Errorf("%+v", m)
		}
	})
}
