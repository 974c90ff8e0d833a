package egress

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// oneWay is a connection whose input is given, and whose output is dropped.
type oneWay struct {
	net.Conn
	io.Reader
}

func (c oneWay) Read(b []byte) (int, error)     { return c.Reader.Read(b) }
func (oneWay) Write(b []byte) (int, error)      { return len(b), nil }
func (oneWay) Close() error                     { return nil }
func (oneWay) SetDeadline(time.Time) error      { return nil }
func (oneWay) SetReadDeadline(time.Time) error  { return nil }
func (oneWay) SetWriteDeadline(time.Time) error { return nil }

// FuzzNameForServers checks that a server of crypto/tls reads the same name from what was accepted.
func FuzzNameForServers(f *testing.F) {
	for _, name := range []string{"allowed.test", "", "a.b.c.example.com"} {
		f.Add(helloOf(f, name))
		f.Add(fragmented(helloOf(f, name), 50))
	}
	f.Add([]byte("\x16\x03\x01\x00\x04\x01\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, in []byte) {
		raw, hello, err := readHello(bytes.NewReader(in))
		if err != nil {
			return
		}
		theirs := ""
		server := tls.Server(oneWay{Reader: bytes.NewReader(raw)}, &tls.Config{
			GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
				theirs = info.ServerName
				return nil, io.EOF
			},
		})
		_ = server.Handshake() // ends when the name is known
		if theirs != "" && theirs != hello.name {
			t.Errorf("crypto/tls reads the name %q, we read %q", theirs, hello.name)
		}
	})
}

// FuzzRequestForServers checks that a server of net/http reads the same host and the same end from what was accepted.
func FuzzRequestForServers(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: allowed.test\r\n\r\n", "GET http://allowed.test/x?y HTTP/1.0\r\nHost: allowed.test:80\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: [::1]\r\n\r\n", "CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET http://u@a/ HTTP/1.1\r\nHost:\t a \r\nX: y\r\n z\r\n\r\n", "GET //a/ HTTP/1.1\r\nhOsT: a\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bufio.NewReaderSize(bytes.NewReader(in), headBuffer)
		raw, err := readHead(r)
		if err != nil {
			return
		}
		h, err := parseHead(raw)
		if err != nil {
			return
		}
		var body bytes.Buffer
		write := func(b []byte) error { _, err := body.Write(b); return err }
		switch {
		case h.length < 0:
			err = copyChunked(r, write)
		case h.length > 0:
			err = copyBody(r, h.length, write)
		}
		// What follows must be the next request for both.
		const next = "GET /next HTTP/1.1\r\nHost: next\r\n\r\n"
		server := bufio.NewReader(io.MultiReader(bytes.NewReader(h.raw), &body, strings.NewReader(next)))
		req, readErr := http.ReadRequest(server)
		if readErr != nil {
			return // the server refuses more than we do
		}
		if host := req.Host; !strings.EqualFold(host, h.host) && !strings.EqualFold(host, h.target) {
			t.Fatalf("net/http reads the host %q from %q, we read %q and %q", host, h.raw, h.host, h.target)
		}
		if err != nil {
			return // the body is not complete
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return
		}
		second, err := http.ReadRequest(server)
		if err != nil || second.Host != "next" {
			t.Fatalf("after %q net/http reads another request: %v, %v", h.raw, second, err)
		}
	})
}

// FuzzHost checks that the host of a Host header is in normal form.
func FuzzHost(f *testing.F) {
	for _, s := range []string{"a.b", "A.b.:80", "[::1]:80", "[::1]", "::1", "a:81", "1.2.3.4", "0x7f.1", "[a]", "a]", "b\u00fccher.example:80", "[::ffff:1.2.3.4]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		h, err := hostOf(text, 80)
		if err != nil {
			return
		}
		if again, err := parseHost(h.String()); err != nil || again != h {
			t.Errorf("%q is the host %q, which is %q, %v", text, h, again, err)
		}
	})
}
