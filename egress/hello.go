package egress

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"io"
)

const (
	// maxHello bounds the records of a ClientHello. Usual ones have 0.3 to 2 KB, with large tickets up to 16 KB.
	maxHello = 32 << 10

	// maxServed bounds what is kept of a server's answer: its ServerHello up to the random, and alerts before it.
	maxServed = 64

	recordHeader      = 5
	recordAlert       = 21
	recordHandshake   = 22
	messageHello      = 1
	messageServed     = 2
	extensionName     = 0
	extensionECH      = 0xfe0d
	serverNameTypeDNS = 0
)

// badRequest is what is wrong with the first bytes of a client.
type badRequest string

// Error implements error.
func (b badRequest) Error() string { return string(b) }

const (
	errNotTLS    = badRequest("the connection does not begin with a TLS ClientHello")
	errHelloSize = badRequest("the ClientHello is larger than 32 KiB")
	errHello     = badRequest("the ClientHello is damaged")
)

// clientHello is what decides about a TLS connection.
type clientHello struct {
	name string // server name as sent; empty: absent
	ech  bool   // the hello has an encrypted one inside, or a random value in its place (GREASE)
}

// readHello reads from r up to the end of the ClientHello, which may be in several records. It returns all bytes it has
// read.
func readHello(r io.Reader) (raw []byte, hello clientHello, err error) {
	var message []byte
	for {
		start := len(raw)
		if start+recordHeader > maxHello {
			return raw, hello, errHelloSize
		}
		if raw, err = readMore(r, raw, recordHeader); err != nil {
			return raw, hello, err
		}
		header := raw[start:]
		length := int(binary.BigEndian.Uint16(header[3:]))
		switch {
		case header[0] != recordHandshake || header[1] != 3:
			return raw, hello, errNotTLS
		case length == 0 || length > 1<<14:
			return raw, hello, errHello
		case len(raw)+length > maxHello:
			return raw, hello, errHelloSize
		}
		if raw, err = readMore(r, raw, length); err != nil {
			return raw, hello, err
		}
		message = append(message, raw[start+recordHeader:]...)
		if message[0] != messageHello {
			return raw, hello, errNotTLS
		}
		if len(message) < 4 {
			continue
		}
		switch size := int(message[1])<<16 | int(message[2])<<8 | int(message[3]); {
		case size > maxHello:
			return raw, hello, errHelloSize
		case len(message) == 4+size:
			hello, err = parseHello(message[4:])
			return raw, hello, err
		case len(message) > 4+size: // a client waits for the answer to its hello
			return raw, hello, errHello
		}
	}
}

// readMore appends n bytes from r to raw. What arrived before an error is kept.
func readMore(r io.Reader, raw []byte, n int) ([]byte, error) {
	start := len(raw)
	raw = append(raw, make([]byte, n)...)
	got, err := io.ReadFull(r, raw[start:])
	return raw[:start+got], err
}

// parseHello parses the body of a ClientHello.
func parseHello(body []byte) (h clientHello, err error) {
	c := cursor{b: body}
	c.take(2 + 32)    // version, random
	c.take(c.uint(1)) // session id
	c.take(c.uint(2)) // cipher suites
	c.take(c.uint(1)) // compression methods
	if len(c.b) == 0 && !c.failed {
		return h, nil // without extensions
	}
	extensions := cursor{b: c.take(c.uint(2))}
	if c.failed || len(c.b) > 0 {
		return h, errHello
	}
	seen := map[int]bool{}
	for len(extensions.b) > 0 {
		kind := extensions.uint(2)
		data := extensions.take(extensions.uint(2))
		if extensions.failed || seen[kind] {
			return h, errHello
		}
		seen[kind] = true
		switch kind {
		case extensionName:
			if h.name, err = parseServerName(data); err != nil {
				return h, err
			}
		case extensionECH:
			h.ech = true
		}
	}
	return h, nil
}

// parseServerName returns the name of a server_name extension, which has exactly one.
func parseServerName(data []byte) (string, error) {
	c := cursor{b: data}
	list := cursor{b: c.take(c.uint(2))}
	kind := list.uint(1)
	name := list.take(list.uint(2))
	if c.failed || list.failed || len(c.b) > 0 || len(list.b) > 0 || kind != serverNameTypeDNS || len(name) == 0 {
		return "", badRequest("the server name in the ClientHello is damaged")
	}
	return string(name), nil
}

// retryRandom is the random by which a ServerHello is a HelloRetryRequest (RFC 8446, 4.1.3).
var retryRandom = sha256.Sum256([]byte("HelloRetryRequest"))

// isServerHello reports whether a server's answer begins with a ServerHello that is no HelloRetryRequest.
func isServerHello(b []byte) bool {
	const alert = recordHeader + 2
	for len(b) >= alert && b[0] == recordAlert { // a warning that it does not know the name
		b = b[alert:]
	}
	const random, end = recordHeader + 4 + 2, recordHeader + 4 + 2 + len(retryRandom)
	return len(b) >= end && b[0] == recordHandshake && b[recordHeader] == messageServed &&
		int(binary.BigEndian.Uint16(b[3:])) >= end-recordHeader && !bytes.Equal(b[random:end], retryRandom[:])
}

// cursor reads numbers and parts of a message. After a part that is too short it only returns zero values.
type cursor struct {
	b      []byte
	failed bool
}

func (c *cursor) take(n int) []byte {
	if c.failed || n > len(c.b) {
		c.failed = true
		return nil
	}
	part := c.b[:n]
	c.b = c.b[n:]
	return part
}

func (c *cursor) uint(size int) (n int) {
	for _, b := range c.take(size) {
		n = n<<8 | int(b)
	}
	return n
}
