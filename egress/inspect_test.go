package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// web starts servers for ports 80 and 443 of every destination of the fixture.
type web struct {
	requests  atomic.Int64
	plain     uint16
	encrypted uint16
	roots     *x509.CertPool
}

func newWeb(t testing.TB, f *fixture) *web {
	t.Helper()
	w := &web{}
	handler := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.requests.Add(1)
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(rw, "host %s, body %s", r.Host, b)
	})
	plain, encrypted := httptest.NewServer(handler), httptest.NewUnstartedServer(handler)
	encrypted.Config.ErrorLog = log.New(io.Discard, "", 0)
	encrypted.StartTLS()
	t.Cleanup(plain.Close)
	t.Cleanup(encrypted.Close)
	w.roots = x509.NewCertPool()
	w.roots.AddCert(encrypted.Certificate())
	w.plain = uint16(plain.Listener.Addr().(*net.TCPAddr).Port)
	w.encrypted = uint16(encrypted.Listener.Addr().(*net.TCPAddr).Port)
	f.redirect(map[uint16]uint16{80: w.plain, 443: w.encrypted})
	return w
}

// redirect dials other ports than those that were decided about, because tests cannot listen on 80 and 443.
func (f *fixture) redirect(ports map[uint16]uint16) {
	f.connect = func(ctx context.Context, addrs []netip.AddrPort) (upstream, netip.AddrPort, error) {
		var real []netip.AddrPort
		for _, a := range addrs {
			port := a.Port()
			if p, ok := ports[port]; ok {
				port = p
			}
			real = append(real, netip.AddrPortFrom(a.Addr(), port))
		}
		conn, addr, err := dialAny(ctx, real)
		return conn, netip.AddrPortFrom(addr.Addr(), addrs[0].Port()), err
	}
}

// webFixture allows example.com (the name of the certificate of httptest) and two names beside it.
func webFixture(t testing.TB, edit func(*GatewayOptions)) (*fixture, *web) {
	t.Helper()
	f := newFixture(t, allow("allow example.com", "allow cdn.acme.org", "allow 127.0.0.1", "deny denied.acme.org:*"), edit)
	for _, n := range []string{"example.com", "cdn.acme.org", "denied.acme.org"} {
		f.resolver.table[n] = []string{"127.0.0.1"}
	}
	return f, newWeb(t, f)
}

func handshake(t testing.TB, c net.Conn, config *tls.Config) error {
	t.Helper()
	c.SetDeadline(time.Now().Add(waitLimit))
	return tls.Client(c, config).Handshake()
}

func TestTLSToTheNameThatIsAllowed(t *testing.T) {
	f, w := webFixture(t, nil)
	c := f.open("example.com", 443)
	conn := tls.Client(c, &tls.Config{ServerName: "EXAMPLE.com", RootCAs: w.roots})
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n")
	b, err := io.ReadAll(conn)
	if err != nil || !strings.Contains(string(b), "host example.com") {
		t.Errorf("%s, %v", b, err)
	}
	conn.Close()
	c.wait(t)
}

func TestFrontingByServerName(t *testing.T) {
	f, w := webFixture(t, nil)
	for what, config := range map[string]*tls.Config{
		"another name":         {ServerName: "denied.acme.org"},
		"another allowed name": {ServerName: "cdn.acme.org"},
		"no name":              {},
		"a name with a suffix": {ServerName: "example.com.evil.org"},
	} {
		config.InsecureSkipVerify = true
		c := f.open("example.com", 443)
		if err := handshake(t, c, config); err == nil || !strings.Contains(err.Error(), "access denied") {
			t.Errorf("%s: the client sees %v, want access denied", what, err)
		}
		c.Close()
		c.refusal(t, RefusedMismatch)
	}
	if n := w.requests.Load(); n > 0 {
		t.Errorf("%d requests reached the server", n)
	}
}

func TestWhatIsNoClientHelloIsNotCarried(t *testing.T) {
	f, _ := webFixture(t, nil)
	var reached atomic.Int64
	port := serve(t, "127.0.0.1:0", func(c *net.TCPConn) {
		n, _ := io.Copy(io.Discard, c)
		reached.Add(n)
	})
	f.redirect(map[uint16]uint16{443: port, 80: port})
	for what, c := range map[string]struct {
		port uint16
		data []byte
	}{
		"ssh on 443":      {443, []byte("SSH-2.0-x\r\n")},
		"http on 443":     {443, []byte("GET / HTTP/1.1\r\nHost: example.com\r\n\r\n")},
		"ech":             {443, record(22, makeHello(serverName("example.com"), extension{extensionECH, []byte{0}}))},
		"large hello":     {443, record(22, []byte{1, 255, 255, 255})},
		"ssh on 80":       {80, []byte("SSH-2.0-x\r\n")},
		"tls on 80":       {80, []byte("\x16\x03\x01\x00\x05hello\n")},
		"h2 on 80":        {80, []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")},
		"connect on 80":   {80, []byte("CONNECT evil.org:22 HTTP/1.1\r\nHost: example.com\r\n\r\n")},
		"fronting on 80":  {80, []byte("GET / HTTP/1.1\r\nHost: denied.acme.org\r\n\r\n")},
		"suffix on 80":    {80, []byte("GET / HTTP/1.1\r\nHost: example.com.evil.org\r\n\r\n")},
		"port on 80":      {80, []byte("GET / HTTP/1.1\r\nHost: example.com:22\r\n\r\n")},
		"userinfo on 80":  {80, []byte("GET / HTTP/1.1\r\nHost: example.com@evil.org\r\n\r\n")},
		"absolute on 80":  {80, []byte("GET http://evil.org/ HTTP/1.1\r\nHost: example.com\r\n\r\n")},
		"no host on 80":   {80, []byte("GET / HTTP/1.0\r\n\r\n")},
		"endless head":    {80, []byte("GET / HTTP/1.1\r\nHost: example.com\r\nX: " + strings.Repeat("x", maxHead+1))},
		"CL and TE on 80": {80, []byte("POST / HTTP/1.1\r\nHost: example.com\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /")},
	} {
		call := f.open("example.com", c.port)
		call.Write(c.data)
		answer := call.all(t)
		call.Close()
		call.refusal(t, RefusedMismatch)
		switch {
		case c.port == 443 && answer != string(alertAccessDenied):
			t.Errorf("%s: the client reads %q", what, answer)
		case c.port == 80 && !strings.HasPrefix(answer, "HTTP/1.1 403 "):
			t.Errorf("%s: the client reads %q", what, answer)
		}
	}
	if n := reached.Load(); n > 0 {
		t.Errorf("%d bytes reached the server", n)
	}
}

func TestAFragmentedHelloIsCarried(t *testing.T) {
	f, _ := webFixture(t, nil)
	hello := fragmented(helloOf(t, "example.com"), 7)
	f.redirect(map[uint16]uint16{443: serve(t, "127.0.0.1:0", func(c *net.TCPConn) {
		b := make([]byte, len(hello))
		if _, err := io.ReadFull(c, b); err != nil || string(b) != string(hello) {
			t.Errorf("the server received %d bytes, %v", len(b), err)
		}
	})})
	c := f.open("example.com", 443)
	for _, b := range hello { // each byte in a segment of its own
		c.Write([]byte{b})
	}
	c.CloseWrite()
	c.all(t)
	c.wait(t)
}

// secondHello is a client whose ClientHello after a HelloRetryRequest has another name of the same length.
type secondHello struct {
	net.Conn
	hellos    int
	from, to  string
	otherName bool
}

func (c *secondHello) Write(b []byte) (int, error) {
	n := len(b)
	if b[0] == recordHandshake && b[5] == messageHello {
		if c.hellos++; c.hellos == 2 && c.otherName {
			b = bytes.ReplaceAll(b, []byte(c.from), []byte(c.to))
		}
	}
	_, err := c.Conn.Write(b)
	return n, err
}

func TestASecondClientHelloIsInspected(t *testing.T) {
	f, w := webFixture(t, nil)
	names := make(chan string, 16) // in the hellos that reached the server
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "REACHED") }))
	server.TLS = &tls.Config{
		CurvePreferences: []tls.CurveID{tls.CurveP384}, // the client has sent no key for it
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			names <- h.ServerName
			return nil, nil
		},
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	w.roots.AddCert(server.Certificate())
	f.redirect(map[uint16]uint16{443: uint16(server.Listener.Addr().(*net.TCPAddr).Port)})
	for _, host := range []string{"example.com", "127.0.0.1"} {
		for _, other := range []bool{false, true} {
			c := f.open(host, 443)
			client := &secondHello{Conn: c, from: "example.com", to: "evil.acme.o", otherName: other}
			conn := tls.Client(client, &tls.Config{ServerName: "example.com", RootCAs: w.roots})
			fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n")
			b, err := io.ReadAll(conn)
			if client.hellos != 2 {
				t.Fatalf("the client sent %d hellos: %v", client.hellos, err)
			}
			if reached := strings.Contains(string(b), "REACHED"); reached == other {
				t.Errorf("to %s, another name %v: %q, %v", host, other, b, err)
			}
			c.Close()
			if other {
				c.refusal(t, RefusedMismatch)
			} else {
				c.wait(t)
			}
		}
	}
	server.Close()
	close(names)
	for n := range names {
		if n != "example.com" {
			t.Errorf("a hello for %s reached the server", n)
		}
	}
}

func TestWhatFollowsAClientHello(t *testing.T) {
	hello := func(name string) []byte { return record(recordHandshake, makeHello(serverName(name))) }
	retry := append([]byte{messageServed, 0, 0, 36, 3, 3}, retryRandom[:]...)
	served := append([]byte{messageServed, 0, 0, 36, 3, 3}, make([]byte, 34)...)
	warning := record(recordAlert, []byte{1, 112})
	other, change, data := hello("evil.acme.org"), record(20, []byte{1}), record(23, make([]byte, 9000))
	for _, c := range []struct {
		what   string
		answer []byte // of the server to the first hello
		then   []byte // what the client sends after the answer
		denied bool
	}{
		{"another name at once", nil, other, true},
		{"after a change of ciphers", record(22, retry), join(change, other), true},
		{"after early data", nil, join(data, change, data, other), true},
		{"in small records", record(22, retry), fragmented(other, 3), true},
		{"after a warning", join(warning, record(22, retry)), other, true},
		{"after an answer in small records", fragmented(record(22, served), 10), other, true},
		{"without a name", nil, record(22, makeHello()), true},
		{"behind an empty record", nil, join(record(22, nil), other), true},
		{"damaged", nil, record(22, []byte{1, 0, 0, 1, 0}), true},
		{"the same name", record(22, retry), join(change, hello("example.com"), data), false},
		{"early data alone", nil, join(change, data, data), false},
		// An encrypted message may begin with any byte.
		{"resumption with TLS 1.2", record(22, served), join(change, record(22, []byte("\x01\xff\xff\xff0123456789")), data), false},
		{"resumption after a warning", join(warning, record(22, served)), record(22, []byte("\x01\xff\xff\xff0123456789")), false},
		{"another message", nil, join(record(22, []byte{16, 0, 0, 0}), data), false},
		{"half a record", nil, []byte{23, 3, 3}, false},
	} {
		f, _ := webFixture(t, nil)
		first := hello("example.com")
		received := make(chan []byte, 1)
		f.redirect(map[uint16]uint16{443: serve(t, "127.0.0.1:0", func(s *net.TCPConn) {
			io.ReadFull(s, make([]byte, len(first)))
			s.Write(c.answer)
			b, _ := io.ReadAll(s)
			received <- b
		})})
		call := f.open("example.com", 443)
		call.Write(first)
		io.ReadFull(call, make([]byte, len(c.answer)))
		call.Write(c.then)
		call.CloseWrite()
		got := <-received
		if c.denied {
			if bytes.Contains(got, []byte("evil")) || len(got) > 0 && bytes.HasSuffix(c.then, got) {
				t.Errorf("%s: the server received %q", c.what, got)
			}
			call.refusal(t, RefusedMismatch)
		} else if call.wait(t); !bytes.Equal(got, c.then) {
			t.Errorf("%s: the server received %d bytes, want %d", c.what, len(got), len(c.then))
		}
		call.Close()
	}
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func TestRequestsOnOneConnectionAreAllInspected(t *testing.T) {
	f, w := webFixture(t, nil)
	c := f.open("example.com", 80)
	c.SetReadDeadline(time.Now().Add(waitLimit))
	r := bufio.NewReader(c)
	for i, request := range []string{
		"GET / HTTP/1.1\r\nHost: Example.com:80\r\n\r\n",
		"POST http://example.com/ HTTP/1.1\r\nHost: example.com\r\nContent-Length: 4\r\n\r\nabcd",
		"POST / HTTP/1.1\r\nHost: example.com\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nefgh\r\n0\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: example.com\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
	} {
		io.WriteString(c, request)
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK || !strings.HasPrefix(strings.ToLower(string(b)), "host example.com") {
			t.Errorf("request %d: %d %s", i, resp.StatusCode, b)
		}
	}
	n := w.requests.Load()
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: denied.acme.org\r\n\r\n")
	if b, _ := io.ReadAll(r); len(b) > 0 {
		t.Errorf("after the request to another host the client reads %q", b)
	}
	c.refusal(t, RefusedMismatch)
	if w.requests.Load() != n {
		t.Error("the request to another host was sent on")
	}
}

func TestAPipelinedRequestToAnotherHost(t *testing.T) {
	f, _ := webFixture(t, nil)
	received := make(chan string, 1)
	f.redirect(map[uint16]uint16{80: serve(t, "127.0.0.1:0", func(c *net.TCPConn) {
		b, _ := io.ReadAll(c)
		received <- string(b)
	})})
	c := f.open("example.com", 80)
	io.WriteString(c, "POST / HTTP/1.1\r\nHost: example.com\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\nHost: denied.acme.org\r\n\r\n")
	c.all(t)
	c.Close()
	c.refusal(t, RefusedMismatch)
	if got := <-received; strings.Contains(got, "denied") {
		t.Errorf("the server received %q", got)
	}
}

func TestWebSocketOnlyAfterTheServerAgrees(t *testing.T) {
	const request = "GET / HTTP/1.1\r\nHost: example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
	for answer, agrees := range map[string]bool{
		"HTTP/1.1 101 Switching Protocols\r\n\r\n":        true,
		"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n":    false,
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 O\r\n": false,
	} {
		f, _ := webFixture(t, nil)
		received := make(chan string, 1)
		f.redirect(map[uint16]uint16{80: serve(t, "127.0.0.1:0", func(c *net.TCPConn) {
			b := make([]byte, len(request))
			io.ReadFull(c, b)
			io.WriteString(c, answer)
			rest, _ := io.ReadAll(c)
			received <- string(rest)
		})})
		c := f.open("example.com", 80)
		io.WriteString(c, request+"GET / HTTP/1.1\r\nHost: denied.acme.org\r\n\r\n")
		c.CloseWrite()
		c.all(t)
		c.Close()
		c.wait(t)
		if got := <-received; strings.Contains(got, "denied.acme.org") != agrees {
			t.Errorf("%q: then the server received %q", answer, got)
		}
	}
}

func TestLiteralAddressesMayNameWhatThePolicyAllows(t *testing.T) {
	f, w := webFixture(t, nil)
	for name, ok := range map[string]bool{"": true, "example.com": true, "denied.acme.org": false, "other.org": false} {
		c := f.open("127.0.0.1", 443)
		err := handshake(t, c, &tls.Config{ServerName: name, InsecureSkipVerify: true})
		if (err == nil) != ok {
			t.Errorf("SNI %q: %v", name, err)
		}
		c.Close()
		c.wait(t)
	}
	for name, ok := range map[string]bool{"127.0.0.1": true, "127.0.0.1:80": true, "example.com": true, "denied.acme.org": false, "169.254.169.254": false} {
		n := w.requests.Load()
		c := f.open("127.0.0.1", 80)
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", name)
		if got := c.all(t); strings.HasPrefix(got, "HTTP/1.1 200") != ok || (w.requests.Load() > n) != ok {
			t.Errorf("Host %q: %q", name, got)
		}
		c.Close()
		c.wait(t)
	}
}

func TestTheServerMayBeginAtALiteralAddress(t *testing.T) {
	f, _ := webFixture(t, nil)
	port := serve(t, "127.0.0.1:0", func(c *net.TCPConn) {
		io.WriteString(c, "SSH-2.0-server\r\n")
		b, _ := io.ReadAll(c)
		c.Write(b)
	})
	f.redirect(map[uint16]uint16{443: port, 80: port})
	for _, p := range []uint16{443, 80} {
		c := f.open("127.0.0.1", p)
		r := bufio.NewReader(c)
		if line, err := r.ReadString('\n'); err != nil || line != "SSH-2.0-server\r\n" {
			t.Fatalf("%q, %v", line, err)
		}
		io.WriteString(c, "x hello")
		c.CloseWrite()
		if b, err := io.ReadAll(r); string(b) != "x hello" {
			t.Errorf("port %d: %q, %v", p, b, err)
		}
		c.wait(t)
	}
}
