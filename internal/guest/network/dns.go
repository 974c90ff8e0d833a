//go:build linux

package network

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/recluse-dev/recluse/internal/guest/wire"
)

const (
	dnsPort    = 53
	dnsTTL     = 30 // seconds; short, because a change of the policy may change an answer
	dnsQueries = 64 // concurrent queries; others wait
	dnsIdle    = 10 * time.Second
	dnsMaxUDP  = 1232
)

// serveUDP answers DNS queries over UDP.
func (n *Network) serveUDP(c *net.UDPConn) {
	slots := make(chan struct{}, dnsQueries)
	for {
		buf := make([]byte, dnsMaxUDP)
		k, from, err := c.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			if reply := n.reply(buf[:k], socket{"udp", from}); reply != nil {
				_, _ = c.WriteToUDPAddrPort(reply, from) // the client asks again
			}
		}()
	}
}

// serveTCP answers DNS queries over TCP.
func (n *Network) serveTCP(l *net.TCPListener) {
	slots := make(chan struct{}, dnsQueries)
	for {
		c, err := l.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(acceptPause) // no descriptor is free, for example
			continue
		}
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			defer c.Close()
			for {
				_ = c.SetDeadline(time.Now().Add(dnsIdle)) // fails only if the connection is closed
				var size [2]byte
				if _, err := io.ReadFull(c, size[:]); err != nil {
					return
				}
				buf := make([]byte, binary.BigEndian.Uint16(size[:]))
				if _, err := io.ReadFull(c, buf); err != nil {
					return
				}
				reply := n.reply(buf, socket{"tcp", addrPort(c.RemoteAddr())})
				if reply == nil {
					return
				}
				// In one write: some clients expect both in one segment.
				reply = append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)
				if _, err := c.Write(reply); err != nil {
					return
				}
			}
		}()
	}
}

// reply returns the answer to a DNS message, or nil if it deserves none.
func (n *Network) reply(query []byte, from socket) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(query)
	if err != nil || h.Response {
		return nil
	}
	out := dnsmessage.Header{
		ID:                 h.ID,
		Response:           true,
		OpCode:             h.OpCode,
		RecursionDesired:   h.RecursionDesired,
		RecursionAvailable: true,
		RCode:              dnsmessage.RCodeFormatError,
	}
	q, err := p.Question()
	if err != nil {
		return build(out, nil, nil)
	}
	if _, err := p.Question(); !errors.Is(err, dnsmessage.ErrSectionDone) {
		return build(out, nil, nil)
	}
	if h.OpCode != 0 || q.Class != dnsmessage.ClassINET {
		out.RCode = dnsmessage.RCodeNotImplemented
		return build(out, &q, nil)
	}
	var body dnsmessage.ResourceBody
	out.RCode, body = n.resolve(q, from)
	return build(out, &q, body)
}

// build packs an answer with at most one resource.
func build(h dnsmessage.Header, q *dnsmessage.Question, body dnsmessage.ResourceBody) []byte {
	m := dnsmessage.Message{Header: h}
	if q != nil {
		m.Questions = []dnsmessage.Question{*q}
		if body != nil {
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: dnsTTL},
				Body:   body,
			}}
		}
	}
	b, err := m.Pack()
	if err != nil {
		return nil
	}
	return b
}

// resolve answers a question. Only A has answers: without IPv6 addresses and HTTPS records, every program connects to
// the address that stands for the name, and sends the name in clear.
func (n *Network) resolve(q dnsmessage.Question, from socket) (dnsmessage.RCode, dnsmessage.ResourceBody) {
	name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		if q.Type == dnsmessage.TypeA {
			return dnsmessage.RCodeSuccess, &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}}
		}
		return dnsmessage.RCodeSuccess, nil
	}
	if q.Type == dnsmessage.TypePTR {
		return n.reverse(name)
	}
	if q.Type != dnsmessage.TypeA && n.names.has(name) && n.on.Load() {
		return dnsmessage.RCodeSuccess, nil // most programs ask for both kinds of addresses, and the host knows the name
	}
	found := n.lookups.ask(name, q.Type, func() wire.Answer { return n.host.Lookup(name, n.owner(from)) })
	switch found {
	case wire.Answer_ANSWER_ALLOWED, wire.Answer_ANSWER_DENIED:
		if !n.on.Load() { // no connection could be opened, so the host could not explain the denial
			return dnsmessage.RCodeNameError, nil
		}
		if q.Type != dnsmessage.TypeA {
			return dnsmessage.RCodeSuccess, nil
		}
		a, ok := n.names.addr(name, found == wire.Answer_ANSWER_DENIED)
		if !ok {
			return dnsmessage.RCodeServerFailure, nil
		}
		return dnsmessage.RCodeSuccess, &dnsmessage.AResource{A: a.As4()}
	case wire.Answer_ANSWER_NOT_FOUND:
		return dnsmessage.RCodeNameError, nil
	case wire.Answer_ANSWER_UNKNOWN, wire.Answer_ANSWER_FAILED:
	}
	return dnsmessage.RCodeServerFailure, nil
}

// reverse returns the name of an address.
func (n *Network) reverse(name string) (dnsmessage.RCode, dnsmessage.ResourceBody) {
	digits, ok := strings.CutSuffix(name, ".in-addr.arpa")
	parts := strings.Split(digits, ".")
	if !ok || len(parts) != 4 {
		return dnsmessage.RCodeNameError, nil
	}
	var a [4]byte
	for i, p := range parts {
		v, err := strconv.ParseUint(p, 10, 8)
		if err != nil {
			return dnsmessage.RCodeNameError, nil
		}
		a[3-i] = byte(v)
	}
	if host, ok := n.names.name(netip.AddrFrom4(a)); ok {
		if ptr, err := dnsmessage.NewName(host + "."); err == nil {
			return dnsmessage.RCodeSuccess, &dnsmessage.PTRResource{PTR: ptr}
		}
	}
	return dnsmessage.RCodeNameError, nil
}
