package egress

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode"
)

// maxHead bounds the head of a request. Servers accept 8 to 64 KB.
const maxHead = 64 << 10

const errNotHTTP = badRequest("the connection does not begin with an HTTP/1 request")

// requestHead is what decides about a request, and where the next one begins.
type requestHead struct {
	raw     []byte // what is sent on: without an upgrade to a protocol that could name other hosts
	host    string // value of Host
	target  string // host in an absolute request target; empty: none
	length  int64  // of the body; -1: chunked
	upgrade bool   // to a WebSocket: after the response 101 the connection carries messages
}

// readHead reads a request head, with its final empty line.
func readHead(r *bufio.Reader) (raw []byte, err error) {
	for {
		line, err := r.ReadSlice('\n')
		if len(raw)+len(line) > maxHead {
			return raw, badRequest("the head of the request is larger than 64 KiB")
		}
		raw = append(raw, line...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil:
			return raw, err
		case !looksLikeHTTP(raw):
			return raw, errNotHTTP
		case bytes.HasSuffix(raw, []byte("\r\n\r\n")):
			return raw, nil
		}
	}
}

// looksLikeHTTP reports whether b can be the beginning of a request: a method and a space.
func looksLikeHTTP(b []byte) bool {
	for i, c := range b {
		if c == ' ' {
			return i >= 3
		}
		if c < 'A' || c > 'Z' || i > 16 {
			return false
		}
	}
	return len(b) > 0
}

// parseHead parses a request head. It is strict: if two programs could read a request differently, a request to another
// host could hide in the difference.
func parseHead(raw []byte) (h requestHead, err error) {
	text, ok := strings.CutSuffix(string(raw), "\r\n\r\n")
	if !ok {
		return h, errNotHTTP
	}
	lines := strings.Split(text, "\r\n")
	parts := strings.Split(lines[0], " ")
	if len(parts) != 3 || parts[2] != "HTTP/1.1" && parts[2] != "HTTP/1.0" || !isToken(parts[0]) {
		return h, errNotHTTP
	}
	if strings.ContainsFunc(parts[1], unicode.IsControl) {
		return h, errNotHTTP
	}
	if parts[0] == "CONNECT" {
		return h, badRequest("CONNECT through port 80 is a relay to other hosts")
	}
	if !strings.HasPrefix(parts[1], "/") && parts[1] != "*" {
		u, err := url.Parse(parts[1])
		if err != nil || u.Host == "" || !strings.EqualFold(u.Scheme, "http") {
			return h, badRequest("the request target is neither a path nor an http URL")
		}
		h.target = u.Host
	}
	seen := map[string]bool{}
	kept := lines[:1]
	for _, line := range lines[1:] {
		key, value, ok := strings.Cut(line, ":")
		if !ok || !isToken(key) || strings.ContainsAny(value, "\x00\r\n") {
			return h, badRequest("the request has an invalid header line")
		}
		key, value = strings.ToLower(key), strings.Trim(value, " \t")
		switch key {
		case "host", "content-length", "transfer-encoding", "upgrade":
			if seen[key] {
				return h, badRequest("the request has two headers " + key)
			}
			seen[key] = true
		}
		switch key {
		case "host":
			h.host = value
		case "content-length":
			n, err := strconv.ParseUint(value, 10, 63)
			if err != nil || value[0] == '+' {
				return h, badRequest("the Content-Length is invalid")
			}
			h.length = int64(n)
		case "transfer-encoding":
			if !strings.EqualFold(value, "chunked") {
				return h, badRequest("the Transfer-Encoding is not chunked")
			}
		case "upgrade":
			if h.upgrade = strings.EqualFold(value, "websocket"); !h.upgrade {
				continue // h2c, for example
			}
		}
		kept = append(kept, line)
	}
	h.raw = []byte(strings.Join(kept, "\r\n") + "\r\n\r\n")
	switch {
	case seen["transfer-encoding"] && seen["content-length"]:
		return h, badRequest("the request has both Content-Length and Transfer-Encoding")
	case seen["transfer-encoding"] && parts[2] == "HTTP/1.0":
		return h, badRequest("a request of HTTP/1.0 has a Transfer-Encoding")
	case seen["transfer-encoding"]:
		h.length = -1
	}
	if !seen["host"] {
		return h, badRequest("the request has no Host header")
	}
	return h, nil
}

// isToken reports whether s can be a method or the name of a header.
func isToken(s string) bool {
	for _, c := range []byte(s) {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
			strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0) {
			return false
		}
	}
	return s != ""
}

// copyChunked copies a chunked body with its trailer from r by write. Chunk extensions are refused: servers disagree on
// where they end.
func copyChunked(r *bufio.Reader, write func([]byte) error) error {
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return errChunk
		}
		size, ok := strings.CutSuffix(string(line), "\r\n")
		n, err := strconv.ParseUint(size, 16, 62)
		if !ok || err != nil || !isHex(size) {
			return errChunk
		}
		if err := write(line); err != nil {
			return err
		}
		if n == 0 {
			return copyTrailer(r, write)
		}
		if err := copyBody(r, int64(n), write); err != nil {
			return err
		}
		end, err := r.Peek(2)
		if err != nil || string(end) != "\r\n" {
			return errChunk
		}
		if err := copyBody(r, 2, write); err != nil {
			return err
		}
	}
}

const errChunk = badRequest("the chunked body is invalid")

func isHex(s string) bool {
	for _, c := range []byte(s) {
		if !('0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F') {
			return false
		}
	}
	return s != ""
}

// copyTrailer copies the lines after the last chunk, with the empty one.
func copyTrailer(r *bufio.Reader, write func([]byte) error) error {
	for total := 0; ; {
		line, err := r.ReadSlice('\n')
		if total += len(line); err != nil || total > maxHead || !bytes.HasSuffix(line, []byte("\r\n")) {
			return errChunk
		}
		if err := write(line); err != nil {
			return err
		}
		if len(line) == 2 {
			return nil
		}
	}
}

// copyBody copies n bytes from r by write, in the pieces that r has in its buffer.
func copyBody(r *bufio.Reader, n int64, write func([]byte) error) error {
	for n > 0 {
		if r.Buffered() == 0 {
			if _, err := r.Peek(1); err != nil {
				return err
			}
		}
		part, err := r.Peek(int(min(n, int64(r.Buffered()))))
		if err != nil {
			return err
		}
		if err := write(part); err != nil {
			return err
		}
		if _, err := r.Discard(len(part)); err != nil {
			return err
		}
		n -= int64(len(part))
	}
	return nil
}

// hostOf returns the name in a Host header or a request target, without its port.
func hostOf(s string, port uint16) (host, error) {
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") {
		if s[i+1:] != strconv.Itoa(int(port)) {
			return host{}, fmt.Errorf("%q is not for port %d", s, port)
		}
		s = s[:i]
	}
	if inner, ok := strings.CutPrefix(s, "["); ok {
		s = strings.TrimSuffix(inner, "]")
	}
	return parseHost(s)
}
