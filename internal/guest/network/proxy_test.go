//go:build linux

package network

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestRequestsToTheHTTPProxy(t *testing.T) {
	for request, want := range map[string]struct {
		to   destination
		head string // for the server; empty: CONNECT
	}{
		"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n": {to: destination{"a.test", 443}},
		"CONNECT [2001:db8::1]:22 HTTP/1.0\n\n":                   {to: destination{"2001:db8::1", 22}},
		"GET http://a.test/x?y HTTP/1.1\r\nHost: other.test\r\nProxy-Authorization: Basic x\r\nConnection: keep-alive\r\nX: y\r\n\r\n": {
			destination{"a.test", 80}, "GET /x?y HTTP/1.1\r\nHost: a.test\r\nX: y\r\nConnection: close\r\n\r\n",
		},
		"POST http://[::1]:8080 HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc": {
			destination{"::1", 8080}, "POST / HTTP/1.0\r\nHost: [::1]:8080\r\nContent-Length: 3\r\nConnection: close\r\n\r\n",
		},
		"GET http://[::1]/ HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n": {
			destination{"::1", 80}, "GET / HTTP/1.1\r\nHost: [::1]\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
		},
	} {
		req, err := readProxyRequest(bufio.NewReaderSize(strings.NewReader(request), proxyBuffer))
		if err != nil || req.to != want.to || string(req.head) != want.head || (req.head == nil) != (want.head == "") {
			t.Errorf("%q: %+v %q, %v", request, req.to, req.head, err)
		}
	}
	for _, request := range []string{
		"CONNECT a.test HTTP/1.1\r\n\r\n", "CONNECT a.test:0 HTTP/1.1\r\n\r\n", "CONNECT a.test:70000 HTTP/1.1\r\n\r\n", "CONNECT :1 HTTP/1.1\r\n\r\n",
		"GET / HTTP/1.1\r\n\r\n", "GET https://a.test/ HTTP/1.1\r\n\r\n", "GET http:///x HTTP/1.1\r\n\r\n", "GET http://a.test/\r\n\r\n", "\r\n\r\n",
		"\x05\x01\x00\r\n\r\n", "GET http://a.test/ HTTP/2.0\r\n\r\n", "GET http://a.test/ HTTP/1.1\r\nX: a\rb\r\n\r\n",
		"GET http://a.test/ HTTP/1.1\r\nX: " + strings.Repeat("x", maxHead) + "\r\n\r\n",
	} {
		_, err := readProxyRequest(bufio.NewReaderSize(strings.NewReader(request), proxyBuffer))
		if _, ok := errors.AsType[errRequest](err); !ok {
			t.Errorf("%.60q: %v", request, err)
		}
	}
}

func FuzzProxyRequest(f *testing.F) {
	f.Add([]byte("CONNECT a.test:443 HTTP/1.1\r\n\r\n"))
	f.Add([]byte("GET http://a.test/x HTTP/1.1\r\nHost: b\r\nConnection: upgrade\r\n\r\nbody"))
	f.Fuzz(func(t *testing.T, data []byte) {
		req, err := readProxyRequest(bufio.NewReaderSize(iotest.OneByteReader(bytes.NewReader(data)), proxyBuffer))
		if err != nil {
			return
		}
		if req.to.host == "" || req.to.port == 0 {
			t.Errorf("%q: %+v", data, req.to)
		}
		// What is sent to the server is one head, and its Host is the destination.
		if head := string(req.head); head != "" && (strings.Count(head, "\r\n\r\n") != 1 || !strings.HasSuffix(head, "\r\n\r\n") ||
			strings.Count(strings.ToLower(head), "\r\nhost:") != 1) {
			t.Errorf("%q becomes %q", data, head)
		}
	})
}

func FuzzSOCKS(f *testing.F) {
	f.Add([]byte("\x05\x01\x00\x05\x01\x00\x03\x06a.test\x01\xbb"))
	f.Add([]byte("\x05\x02\x00\x02\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50"))
	f.Fuzz(func(t *testing.T, data []byte) {
		to, code, err := readSOCKS(iotest.OneByteReader(bytes.NewReader(data)), io.Discard)
		if err == nil && code == socksOK && len(to.host) > 255 {
			t.Errorf("%q: %+v", data, to)
		}
	})
}
