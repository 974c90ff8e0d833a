package egress

import (
	"bufio"
	"bytes"
	"strings"
	"testing"
)

func TestParseHead(t *testing.T) {
	for text, want := range map[string]requestHead{
		"GET / HTTP/1.1\r\nHost: a.org\r\n\r\n":                                              {host: "a.org"},
		"GET http://b.org:80/x HTTP/1.1\r\nhOST:\ta.org \r\n\r\n":                            {host: "a.org", target: "b.org:80"},
		"POST / HTTP/1.0\r\nHost: a.org\r\nContent-Length: 12\r\n\r\n":                       {host: "a.org", length: 12},
		"POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: Chunked\r\n\r\n":               {host: "a.org", length: -1},
		"GET / HTTP/1.1\r\nHost: a.org\r\nUpgrade: WebSocket\r\nConnection: Upgrade\r\n\r\n": {host: "a.org", upgrade: true},
		"GET / HTTP/1.1\r\nHost: a.org\r\nUpgrade: h2c\r\nX: y\r\n\r\n":                      {host: "a.org"},
		"OPTIONS * HTTP/1.1\r\nHost: \r\n\r\n":                                               {},
	} {
		h, err := parseHead([]byte(text))
		raw := string(h.raw)
		h.raw = nil
		if err != nil || h.host != want.host || h.target != want.target || h.length != want.length || h.upgrade != want.upgrade {
			t.Errorf("%q: %+v, %v; want %+v", text, h, err, want)
		}
		if strings.Contains(raw, "h2c") || !strings.Contains(raw, "h2c") && !strings.Contains(text, "h2c") && raw != text {
			t.Errorf("%q is sent on as %q", text, raw)
		}
	}
}

func TestRequestsThatTwoProgramsCouldReadDifferently(t *testing.T) {
	for _, text := range []string{
		"GET / HTTP/1.1\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a.org\r\nHost: b.org\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a.org\r\n Host: b.org\r\n\r\n",
		"GET / HTTP/1.1\r\nHost : a.org\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a.org\nHost: b.org\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a.org\rHost: b.org\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\x00.org\r\n\r\n",
		"GET /\nHost:b.org HTTP/1.1\r\nHost: a.org\r\n\r\n",
		"GET  / HTTP/1.1\r\nHost: a.org\r\n\r\n",
		"GET / HTTP/1.1 \r\nHost: a.org\r\n\r\n",
		"GET /\r\n\r\n",
		"GET / HTTP/2.0\r\nHost: a.org\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\n",
		"GET https://b.org/ HTTP/1.1\r\nHost: a.org\r\n\r\n",
		"GET b.org:80 HTTP/1.1\r\nHost: a.org\r\n\r\n",
		"CONNECT b.org:22 HTTP/1.1\r\nHost: a.org\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: +1\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: 1, 1\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: -1\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length:\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: 99999999999999999999\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: xchunked\r\n\r\n",
		"POST / HTTP/1.0\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n",
	} {
		if h, err := parseHead([]byte(text)); err == nil {
			t.Errorf("%q is accepted as %+v", text, h)
		}
	}
}

func TestCopyChunked(t *testing.T) {
	for text, ok := range map[string]bool{
		"5\r\nhello\r\n0\r\n\r\n":              true,
		"A\r\n0123456789\r\n0\r\nX: y\r\n\r\n": true,
		"5;ext=1\r\nhello\r\n0\r\n\r\n":        false,
		"5\nhello\r\n0\r\n\r\n":                false,
		"5\r\nhelloXX0\r\n\r\n":                false,
		"+5\r\nhello\r\n0\r\n\r\n":             false,
		"0x5\r\nhello\r\n0\r\n\r\n":            false,
		"5 \r\nhello\r\n0\r\n\r\n":             false,
		"\r\nhello\r\n0\r\n\r\n":               false,
		"ffffffffffffffff\r\nhello":            false,
		"0\r\nX: y\n\r\n":                      false,
		"5\r\nhello\r\n0\r\n":                  false,
	} {
		var out bytes.Buffer
		r := bufio.NewReaderSize(strings.NewReader(text+"NEXT"), 16)
		err := copyChunked(r, func(b []byte) error { out.Write(b); return nil })
		if (err == nil) != ok || ok && out.String() != text {
			t.Errorf("%q: copied %q, %v", text, out.String(), err)
		}
	}
}

func FuzzHTTPHead(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: a.org\r\n\r\n", "POST http://a.org/ HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: [::1]:80\r\nUpgrade: h2c\r\n\r\n", "POST / HTTP/1.0\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bufio.NewReaderSize(bytes.NewReader(b), headBuffer)
		raw, err := readHead(r)
		if len(raw) > maxHead || !bytes.HasPrefix(b, raw) {
			t.Fatalf("%d bytes are kept, which must be the first of those sent", len(raw))
		}
		if err != nil {
			return
		}
		h, err := parseHead(raw)
		if err != nil {
			return
		}
		again, err := parseHead(h.raw)
		if err != nil || again.host != h.host || again.target != h.target || again.length != h.length {
			t.Errorf("%q is %+v, and sent on it is %+v, %v", raw, h, again, err)
		}
		if h.length < 0 {
			n := 0
			if err := copyChunked(r, func(p []byte) error { n += len(p); return nil }); err == nil && n > len(b) {
				t.Errorf("%d bytes of %d", n, len(b))
			}
		}
	})
}
