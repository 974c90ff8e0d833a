package sandboxtest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// zone is a resolver whose names all lead to this machine.
type zone struct{}

// LookupNetIP implements egress.Resolver.
func (zone) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
}

// Network returns the operator's part of the network policies of a backend that runs the suite: all names lead to
// servers of the test.
func Network() sandbox.NetworkOptions {
	return sandbox.NetworkOptions{
		Resolver:    zone{},
		FloorExcept: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	}
}

// connections is the part of the suite that every combination of kernel and engine runs.
var connections = feature{"connections follow the policy", onBackend, followPolicy}

var network = []feature{
	{"other traffic is refused at once", onBackend, refuseOtherTraffic},
	{"code cannot change the network", onBackend, keepNetwork},
	{"proxies inside follow the policy", onBackend, proxies},
	{"names are unknown without a policy", onBackend, func(t *testing.T, s *suite) {
		s.needEgress(t)
		sb := s.python(t)
		okCell(t, sb, netPrelude)
		v := okCell(t, sb, "page('pypi.org')")
		contains(t, "the page", v.Result.Text(), "not known")
		if len(v.Network) != 1 || v.Network[0].Host != "pypi.org" || !strings.Contains(v.Network[0].Reason, "--net packages") {
			t.Errorf("the verdict has %+v", v.Network)
		}
	}},
	{"policies that cannot be enforced are refused", onBackend, refusePolicies},
	{"the network works after attaching again", onBackend, func(t *testing.T, s *suite) {
		s.needEgress(t)
		o := newOutside(t)
		sb := s.openDetachable(t, o.allow("a.example.test"))
		okCell(t, sb, netPrelude)
		contains(t, "the page", okCell(t, sb, "page('a.example.test', "+o.port+")").Result.Text(), "hello a.example.test")
		sb = s.reattach(t, sb)
		contains(t, "the page", okCell(t, sb, "page('a.example.test', "+o.port+")").Result.Text(), "hello a.example.test")
		contains(t, "the page", okCell(t, sb, "page('b.example.test')").Result.Text(), "403 recluse")
	}},
	{"a server inside can use the ports of the policy", onBackend, func(t *testing.T, s *suite) {
		s.needEgress(t)
		o := newOutside(t)
		sb := s.python(t, o.allow("a.example.test"))
		okCell(t, sb, netPrelude)
		contains(t, "the page", okCell(t, sb, "page('a.example.test', "+o.port+")").Result.Text(), "hello a.example.test")
		okCell(t, sb, "import socket; server = socket.create_server(('127.0.0.1', "+o.port+"))")
		contains(t, "the page", okCell(t, sb, "page('a.example.test', "+o.port+")").Result.Text(), "hello a.example.test")
	}},
}

// needEgress skips the test unless the backend filters connections.
func (s *suite) needEgress(t *testing.T) {
	t.Helper()
	s.needLibrary(t, ": the names of the outside are those of the suite's own resolver")
	s.needPython(t)
	if s.caps.Egress != sandbox.EgressAllPorts && s.caps.Egress != sandbox.EgressListedPorts {
		t.Skipf("SKIPPED: this backend filters no connections: %s", s.caps.Egress)
	}
}

// outside is a web server outside of the sandbox.
type outside struct{ port string }

func newOutside(t *testing.T) outside {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "hello %s, %d bytes", strings.Split(r.Host, ":")[0], r.ContentLength)
	}))
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	noError(t, err)
	return outside{port}
}

// allow returns a change of a spec that allows targets at the port of the server.
func (o outside) allow(targets ...string) func(*sandbox.Spec) {
	return func(spec *sandbox.Spec) {
		for _, name := range targets {
			spec.Network.Rules = append(spec.Network.Rules, v1.NetworkRule("allow "+name+":"+o.port))
		}
	}
}

// netPrelude defines page(host, port), which returns the body of a page or the error, and refused(f), which returns the
// error of a call and fails if it took a second.
const netPrelude = `
import errno, os, socket, struct, time, urllib.error, urllib.request
def page(host, port=80, data=None, proxy=None):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": proxy} if proxy else {}))
    try:
        return opener.open(f"http://{host}:{port}/", data, timeout=20).read().decode()
    except urllib.error.HTTPError as e:
        return f"{e.code} {e.read().decode()}"
    except OSError as e:
        return repr(e)
def refused(f):
    began = time.time()
    try:
        return f"no error: {f()!r}"
    except OSError as e:
        took = time.time() - began
        return f"refused: {e!r}" if took < 1 else f"refused after {took} s: {e!r}"
`

func followPolicy(t *testing.T, s *suite) {
	s.needEgress(t)
	o := newOutside(t)
	sb := s.python(t, o.allow("*.example.test"))
	okCell(t, sb, netPrelude)
	v := okCell(t, sb, "page('api.example.test', "+o.port+", b'x' * 300000)")
	contains(t, "the page", v.Result.Text(), "hello api.example.test, 300000 bytes")
	if len(v.Network) != 1 || v.Network[0].Host != "api.example.test" || v.Network[0].Action != v1.NetworkAllow ||
		v.Network[0].Sent < 300_000 || v.Network[0].Received == 0 || v.Network[0].Unattributed {
		t.Errorf("the verdict has %+v", v.Network)
	}
	v = okCell(t, sb, "page('other.test')")
	contains(t, "a denied page", v.Result.Text(), "403 recluse: the network policy does not allow other.test:80")
	if len(v.Network) != 1 || v.Network[0].Host != "other.test" || v.Network[0].Action != v1.NetworkDeny {
		t.Errorf("the verdict has %+v", v.Network)
	}
	for _, host := range []string{"other.test", "example.test"} { // *. does not include the apex
		contains(t, host, okCell(t, sb, "page('"+host+"', "+o.port+")").Result.Text(), "Error")
	}
	contains(t, "a denied port", okCell(t, sb, "page('api.example.test', 1)").Result.Text(), "Error")
}

func refuseOtherTraffic(t *testing.T, s *suite) {
	s.needEgress(t)
	o := newOutside(t)
	sb := s.python(t, o.allow("a.example.test"))
	okCell(t, sb, netPrelude+`
def udp(host, port=443):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20); s.connect((host, port)); s.send(b'x'); return s.recv(1)
`)
	for _, call := range []string{
		"udp('93.184.216.34')",
		"udp(socket.gethostbyname('a.example.test'))",
		"socket.create_connection(('93.184.216.34', 443), 20).recv(1)",
		"socket.create_connection(('169.254.169.254', 80), 20).recv(1)",
		"socket.create_connection(('127.1.2.3', " + o.port + "), 20).recv(1)",
		"socket.create_connection(('2606:2800:220:1::1', 443), 20).recv(1)",
		"socket.create_connection(('a.example.test', 1), 20).recv(1)",
	} {
		if got := okCell(t, sb, "refused(lambda: "+call+")").Result.Text(); !strings.Contains(got, "refused: ") {
			t.Errorf("%s: %s", call, got)
		}
	}
}

// keepNetwork tries what a program with the guest's capabilities could do.
func keepNetwork(t *testing.T, s *suite) {
	s.needEgress(t)
	o := newOutside(t)
	sb := s.python(t, o.allow("a.example.test"))
	okCell(t, sb, netPrelude+`
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    if getattr(libc, name)(*args) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def netlink(kind, body):
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    s.settimeout(20)
    s.send(struct.pack("=LHHLL", 16 + len(body), kind, 0x605, 1, 0) + body)
    code = -struct.unpack_from("=i", s.recv(4096), 16)[0]
    if code:
        raise OSError(code, os.strerror(code))
def foreign(): # binds to an address of another machine
    s = socket.socket()
    s.setsockopt(socket.SOL_IP, 19, 1) # IP_TRANSPARENT
    s.bind(("93.184.216.34", 443))
address = struct.pack("=BBBBi", 2, 32, 0, 0, 1) + b"".join(struct.pack("=HH4s", 8, k, bytes([10, 1, 2, 3])) for k in (1, 2))
route = struct.pack("=8BL", 2, 0, 0, 0, 254, 3, 0, 1, 0) + struct.pack("=HHi", 8, 4, 1)
rules = b"filter".ljust(32, b"\0") + struct.pack("=16L", 8, 0, 0, *[0] * 13)
`)
	for _, attempt := range []string{
		"socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)",
		"socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)",
		"socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_TCP)",
		"socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)",
		"socket.socket().setsockopt(socket.SOL_IP, 64, rules)", // IPT_SO_SET_REPLACE
		"foreign()",
		"netlink(20, address)",
		"netlink(24, route)",
		"call('unshare', 0x10000000)",                    // CLONE_NEWUSER
		"call('unshare', 0x50000000)",                    // with CLONE_NEWNET
		"call('setns', os.open('/proc/1/ns/net', 0), 0)", // the guest's namespace
		"open('/dev/net/tun', 'r+b')",
	} {
		if got := okCell(t, sb, "refused(lambda: "+attempt+")").Result.Text(); !strings.Contains(got, "refused: ") {
			t.Errorf("%s: %s", attempt, got)
		}
	}
	for line := range strings.Lines(shell(t, sb, "grep -E '^Cap(Inh|Prm|Eff|Amb):' /proc/self/status")) {
		if !strings.HasSuffix(strings.TrimSpace(line), "\t0000000000000000") {
			t.Errorf("code has capabilities: %s", line)
		}
	}
	contains(t, "the page afterwards", okCell(t, sb, "page('a.example.test', "+o.port+")").Result.Text(), "hello a.example.test")
	contains(t, "a denied page afterwards", okCell(t, sb, "page('b.example.test')").Result.Text(), "403 recluse")
}

func proxies(t *testing.T, s *suite) {
	s.needEgress(t)
	o := newOutside(t)
	sb := s.python(t, o.allow("a.example.test", "127.0.0.1"))
	okCell(t, sb, netPrelude+`
web = "http://127.0.0.1:3128"
def connect(target, more=""):
    s = socket.create_connection(("127.0.0.1", 3128), 20)
    s.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{more}\r\n".encode())
    return s, s.recv(1000).decode()
def socks(kind, host, port, command=1, methods=b"\0"):
    s = socket.create_connection(("127.0.0.1", 1080), 20)
    s.sendall(bytes([5, len(methods)]) + methods)
    if (got := s.recv(2)) != b"\5\0":
        return s, got
    s.sendall(bytes([5, command, 0, kind]) + host + struct.pack(">H", port))
    return s, s.recv(10)
def name(text):
    return bytes([len(text)]) + text.encode()
def get(s):
    s.sendall(b"GET / HTTP/1.0\r\nHost: a.example.test\r\n\r\n")
    return b"".join(iter(lambda: s.recv(1000), b"")).decode()
port = `+o.port+"\n")
	for code, want := range map[string]string{
		"page('a.example.test', port, b'x' * 300000, web)":                "hello a.example.test, 300000 bytes",
		"page('127.0.0.1', port, None, web)":                              "hello 127.0.0.1",
		"page('b.example.test', port, None, web)":                         "403 recluse: the network policy does not allow b.example.test:" + o.port,
		"page('169.254.169.254', 80, None, web)":                          "403 recluse: ",
		"get(connect(f'a.example.test:{port}')[0])":                       "hello a.example.test",
		"connect(f'a.example.test:{port}')[1]":                            "HTTP/1.1 200 ",
		"connect('a.example.test:1')[1]":                                  "HTTP/1.1 403 ",
		"connect('b.example.test:443', 'X: ' + 'y' * 9000 + '\\r\\n')[1]": "HTTP/1.1 403 ",
		"connect('nonsense')[1]":                                          "HTTP/1.1 400 ",
		"page('127.0.0.1', 3128)":                                         "400 recluse: this is a proxy",
		"get(socks(3, name('a.example.test'), port)[0])":                  "hello a.example.test",
		"socks(1, bytes([127, 0, 0, 1]), port)[1].hex()":                  "0500",
		"socks(3, name('b.example.test'), port)[1].hex()":                 "0502",
		"socks(1, bytes([169, 254, 169, 254]), 80)[1].hex()":              "0502",
		"socks(4, bytes(15) + b'\\1', port)[1].hex()":                     "0502",
		"socks(3, name('a.example.test'), port, 2)[1].hex()":              "0507",
		"socks(3, name('a.example.test'), port, 3)[1].hex()":              "0507",
		"socks(9, b'', port)[1].hex()":                                    "0508",
		"socks(1, bytes(4), port, methods=b'\\2')[1].hex()":               "05ff",
	} {
		if got := okCell(t, sb, code).Result.Text(); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", code, got, want)
		}
	}
	if testneed.AllTests() { // a slow client is disconnected
		code := "slow = [socket.create_connection(('127.0.0.1', p), 20) for p in (3128, 1080)]\n" +
			"for s in slow: s.sendall(b'\\5')\n[s.recv(10) for s in slow]"
		same(t, "the answer to slow clients", okCell(t, sb, code).Result.Text(), "[b'', b'']")
	}
	v := okCell(t, sb, "page('c.example.test', port, None, web)")
	if len(v.Network) != 1 || v.Network[0].Host != "c.example.test" || v.Network[0].Action != v1.NetworkDeny || v.Network[0].Unattributed {
		t.Errorf("the verdict has %+v", v.Network)
	}
}

func refusePolicies(t *testing.T, s *suite) {
	s.needLibrary(t, ": over HTTP the maximum of the server decides, too")
	for _, c := range []struct {
		policy v1.Network
		needs  sandbox.Egress // that accepts the policy
	}{
		{v1.Network{Preset: v1.NetworkAll}, sandbox.EgressUnfiltered},
		{v1.Network{Preset: v1.NetworkPublic}, sandbox.EgressAllPorts},
		{v1.Network{Rules: []v1.NetworkRule{"allow a.test:*"}}, sandbox.EgressAllPorts},
		{v1.Network{Rules: []v1.NetworkRule{"allow a.test:8000-8064"}}, sandbox.EgressAllPorts},
		{v1.Network{Rules: []v1.NetworkRule{"allow a.test:8000-8063"}}, sandbox.EgressListedPorts},
		{v1.Network{Preset: v1.NetworkPackages}, sandbox.EgressListedPorts},
	} {
		accepts := map[sandbox.Egress][]sandbox.Egress{
			sandbox.EgressAllPorts:    {sandbox.EgressUnfiltered, sandbox.EgressAllPorts, sandbox.EgressListedPorts},
			sandbox.EgressListedPorts: {sandbox.EgressListedPorts},
			sandbox.EgressUnfiltered:  {sandbox.EgressUnfiltered},
			sandbox.EgressNone:        nil,
		}[s.caps.Egress]
		spec := s.opts.Spec
		spec.Network = c.policy
		sb, err := sandbox.Open(t.Context(), s.backend(t), spec)
		if sb != nil {
			noError(t, sb.Close())
		}
		want := v1.CodeNotSupported
		for _, e := range accepts {
			if e == c.needs {
				want = ""
			}
		}
		fails(t, c.policy.String(), err, want)
	}
}
