package attack

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// internet is what sandboxes of these tests could reach outside: servers on loopback addresses, and the names that lead
// to them. No test uses the real network.
type internet struct {
	open   netip.Addr // of servers that the policy allows
	denied netip.Addr // of servers that the floor allows, and the policy does not
	inner  netip.Addr // of servers that the floor denies, as it does the rest of 127.0.0.0/8

	mu       sync.Mutex
	asked    []string        // guarded by mu; names that were resolved
	received strings.Builder // guarded by mu; what the servers that listen on ports 80 and 443 of open have read
	visits   []string        // guarded by mu; connections and datagrams to denied and inner

	start sync.Once
	ends  []func() // of the servers
}

// netEnv is the environment variable with the network of the tests, for a child process that uses the same one.
const netEnv = "RECLUSE_ATTACK_NET"

// outside is the internet of all tests of this process. Its names resolve from the start; serve starts its servers.
var outside = newInternet()

func newInternet() *internet {
	first := os.Getenv(netEnv)
	if first == "" { // tests of other processes have other addresses
		first = fmt.Sprintf("127.%d.%d.0", 1+rand.IntN(200), rand.IntN(256))
	}
	base := netip.MustParseAddr(first).As4()
	at := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{base[0], base[1], base[2], last}) }
	return &internet{open: at(10), denied: at(11), inner: at(20)}
}

// options are those of an operator whose allowed servers have special addresses.
func (n *internet) options() sandbox.NetworkOptions {
	return sandbox.NetworkOptions{
		Resolver:    n,
		FloorExcept: []netip.Prefix{netip.PrefixFrom(n.open, 31)}, // open and denied
	}
}

// addresses of names below floor.test, which the policy allows and whose addresses the floor denies.
func (n *internet) floor(name string) []netip.Addr {
	inner := n.inner.As4()
	switch name {
	case "inner":
		return []netip.Addr{n.inner}
	case "mapped":
		return []netip.Addr{netip.AddrFrom16(n.inner.As16())}
	case "nat64":
		return []netip.Addr{netip.AddrFrom16([16]byte{0, 0x64, 0xff, 0x9b, 12: inner[0], inner[1], inner[2], inner[3]})}
	case "sixtofour":
		return []netip.Addr{netip.AddrFrom16([16]byte{0x20, 0x02, inner[0], inner[1], inner[2], inner[3]})}
	case "zero":
		return []netip.Addr{netip.IPv4Unspecified()}
	case "loopback":
		return []netip.Addr{netip.IPv6Loopback(), netip.MustParseAddr("127.0.0.1")}
	case "metadata":
		return []netip.Addr{netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("fd00:ec2::254")}
	}
	return nil
}

// LookupNetIP implements egress.Resolver.
func (n *internet) LookupNetIP(_ context.Context, _, name string) ([]netip.Addr, error) {
	name = strings.TrimSuffix(name, ".")
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, name)
	first, rest, _ := strings.Cut(name, ".")
	var addrs []netip.Addr
	switch {
	case name == "allowed.test", rest == "wild.test":
		addrs = []netip.Addr{n.open}
	case name == "mixed.test": // a rebinding server answers with both
		addrs = []netip.Addr{n.inner, n.open}
	case rest == "floor.test":
		addrs = n.floor(first)
	default:
		addrs = []netip.Addr{n.denied}
	}
	if addrs == nil {
		return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	return addrs, nil
}

// rules are the policy of the attacked sandboxes. If only listed ports work, it lists those that the attacks use.
func (n *internet) rules(listed bool) v1.Network {
	rules := []v1.NetworkRule{"allow allowed.test", "allow allowed.test:7000-7002", "allow allowed.test:7004", "allow *.wild.test", "allow mixed.test"}
	if !listed {
		return v1.Network{Rules: append(rules, "allow *.floor.test:*")}
	}
	for _, port := range []string{"", ":22", ":853", ":7000"} {
		rules = append(rules, v1.NetworkRule("allow *.floor.test"+port))
	}
	return v1.Network{Rules: rules}
}

// serve starts the servers, unless they run. They end with the process.
func (n *internet) serve(t *testing.T) {
	t.Helper()
	n.start.Do(func() { n.serveOnce(t) })
}

func (n *internet) serveOnce(t *testing.T) {
	t.Helper()
	web := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if to := r.URL.Query().Get("to"); to != "" {
			http.Redirect(w, r, map[string]string{
				"denied":   "http://denied.test/",
				"inner":    "http://" + n.inner.String() + "/",
				"metadata": "http://169.254.169.254/latest/meta-data/",
				"port":     "http://allowed.test:22/",
			}[to], http.StatusFound)
			return
		}
		_, _ = io.WriteString(w, "REACHED "+r.URL.Path)
	})
	for _, port := range []uint16{80, 443} {
		s := httptest.NewUnstartedServer(web)
		_ = s.Listener.Close()
		s.Listener = recorder{n.listen(t, n.open, port), n}
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		if port == 443 {
			s.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
			s.StartTLS()
		} else {
			s.Start()
		}
		n.ends = append(n.ends, func() { s.CloseClientConnections(); s.Close() })
	}
	stopped := make(chan struct{})
	n.ends = append(n.ends, func() { close(stopped) })
	for port, serve := range map[uint16]func(net.Conn){
		7000: func(c net.Conn) { _, _ = io.Copy(c, c) },
		7001: func(c net.Conn) { _, _ = io.Copy(c, endless{}) },
		7002: func(c net.Conn) { _, _ = io.WriteString(c, "REACHED") },
		7004: func(net.Conn) { <-stopped }, // never reads
	} {
		accept(n.listen(t, n.open, port), func(c net.Conn) {
			defer c.Close()
			serve(c)
		})
	}
	for _, a := range []netip.Addr{n.denied, n.inner} {
		for _, port := range []uint16{22, 53, 80, 443, 853, 7000} {
			accept(n.listen(t, a, port), func(c net.Conn) {
				n.visit(c.LocalAddr())
				_ = c.Close()
			})
		}
		for _, port := range []uint16{53, 443} {
			c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, port)))
			if err != nil {
				t.Fatal(err)
			}
			n.ends = append(n.ends, func() { _ = c.Close() })
			go func() {
				for {
					_, _, err := c.ReadFromUDPAddrPort(make([]byte, 1))
					if errors.Is(err, net.ErrClosed) {
						return
					}
					n.visit(c.LocalAddr())
				}
			}()
		}
	}
}

// close ends the servers.
func (n *internet) close() {
	for _, end := range n.ends {
		end()
	}
}

// endless is a reader without an end.
type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

func (n *internet) listen(t *testing.T, a netip.Addr, port uint16) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp4", netip.AddrPortFrom(a, port).String())
	if err != nil {
		t.Fatal(err)
	}
	n.ends = append(n.ends, func() { _ = l.Close() })
	return l
}

// accept serves the connections of a listener until it is closed.
func accept(l net.Listener, serve func(net.Conn)) {
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
}

func (n *internet) visit(to net.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.visits = append(n.visits, to.Network()+" "+to.String())
}

// check fails the test if anything has reached what the policy denies, or if a name was resolved that it does not allow.
func (n *internet) check(t *testing.T) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.visits) > 0 {
		t.Errorf("reached what the policy denies: %v", n.visits)
	}
	for _, name := range n.asked {
		allowed := []string{".wild.test", ".floor.test"}
		if name != "allowed.test" && name != "mixed.test" &&
			!slices.ContainsFunc(allowed, func(s string) bool { return strings.HasSuffix(name, s) }) {
			t.Errorf("%q was resolved", name)
		}
	}
	for _, word := range []string{"denied.test", "secret-of-a-mismatch"} {
		if strings.Contains(strings.ToLower(n.received.String()), word) {
			t.Errorf("the allowed server received %q", word)
		}
	}
}

// recorder is a listener of a server whose input is recorded.
type recorder struct {
	net.Listener
	n *internet
}

func (r recorder) Accept() (net.Conn, error) {
	c, err := r.Listener.Accept()
	return recorded{c, r.n}, err
}

type recorded struct {
	net.Conn
	n *internet
}

func (r recorded) Read(b []byte) (int, error) {
	k, err := r.Conn.Read(b)
	r.n.mu.Lock()
	defer r.n.mu.Unlock()
	r.n.received.Write(b[:k])
	return k, err
}
