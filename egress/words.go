package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

const (
	wordsTimeout = 5 * time.Second // for the client's first bytes, and to read the answer
	maxFirst     = 16 << 10        // of the client's first bytes
	maxDrain     = 64 << 10        // of what the client sends after it was refused
)

// alertAccessDenied is a TLS record with the fatal alert 49.
var alertAccessDenied = []byte{21, 3, 1, 0, 2, 2, 49}

// sayNo refuses a connection before it was accepted: in words, if a name on port 80 or 443 lets the client expect an
// answer; else at once.
func (c *connection) sayNo(refusal *Refusal) {
	if !c.expectsWords(refusal.Kind) {
		c.client.Refuse(refusal)
		return
	}
	if c.client.Accept() != nil {
		return
	}
	stop := context.AfterFunc(c.ctx, func() { c.client.Close() })
	defer stop()
	timer := time.AfterFunc(wordsTimeout, func() { c.client.Close() })
	defer timer.Stop()
	first, err := c.readFirst()
	if err != nil && !errors.Is(err, io.EOF) {
		return
	}
	c.words(refusal, first)
}

// expectsWords reports whether the client can read a refusal. On 443 the only words are "access denied", which are
// wrong for a destination that does not answer.
func (c *connection) expectsWords(kind RefusalKind) bool {
	if c.host.name == "" || c.request.Explicit {
		return false
	}
	switch kind {
	case RefusedByPolicy, RefusedByFloor:
		return c.request.Port == 80 || c.request.Port == 443
	case RefusedNotFound, RefusedTimeout, RefusedUnreached:
		return c.request.Port == 80
	case RefusedByLimit, RefusedChanged, RefusedClosing, RefusedMismatch:
	}
	return false
}

// readFirst reads the client's first request or ClientHello. What remains unread would turn the answer into a reset.
func (c *connection) readFirst() ([]byte, error) {
	b := make([]byte, maxFirst)
	for n := 0; ; {
		m, err := c.client.Read(b[n:])
		n += m
		switch {
		case err != nil, n == len(b):
			return b[:n], err
		case b[0] == recordHandshake:
			if n >= 5 && n >= 5+int(b[3])<<8+int(b[4]) {
				return b[:n], nil
			}
		case !looksLikeHTTP(b[:n]), n >= 4 && string(b[n-4:n]) == "\r\n\r\n":
			return b[:n], nil
		}
	}
}

// words writes the refusal in the protocol of the client. Without its first bytes, the port tells the protocol.
func (c *connection) words(refusal *Refusal, first []byte) {
	timer := time.AfterFunc(wordsTimeout, func() { c.client.Close() })
	defer timer.Stop()
	var err error
	switch {
	case len(first) > 0 && first[0] == recordHandshake, first == nil && c.request.Port == 443:
		_, err = c.client.Write(alertAccessDenied)
	case looksLikeHTTP(first), first == nil:
		body := "recluse: " + refusal.Error() + "\n"
		_, err = fmt.Fprintf(c.client, "HTTP/1.1 %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n"+
			"Connection: close\r\nX-Recluse-Denied: %s\r\n\r\n%s", httpStatus(refusal.Kind), len(body), refusal.Kind, body)
	default:
		return
	}
	if err == nil && c.client.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, c.client, maxDrain)
	}
}

func httpStatus(kind RefusalKind) string {
	switch kind {
	case RefusedTimeout:
		return "504 Gateway Timeout"
	case RefusedNotFound, RefusedUnreached:
		return "502 Bad Gateway"
	default:
		return "403 Forbidden"
	}
}
