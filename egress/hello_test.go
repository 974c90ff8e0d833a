package egress

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
)

// helloOf returns the ClientHello that crypto/tls sends for a server name, as one record.
func helloOf(t testing.TB, name string) []byte {
	t.Helper()
	a, b := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		tls.Client(a, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
		a.Close()
	}()
	raw, _, err := readHello(b)
	b.Close()
	<-done
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// record returns a TLS record.
func record(kind byte, payload []byte) []byte {
	b := []byte{kind, 3, 1}
	b = binary.BigEndian.AppendUint16(b, uint16(len(payload)))
	return append(b, payload...)
}

// fragmented returns the handshake message of a record in records of size bytes.
func fragmented(raw []byte, size int) (out []byte) {
	for message := raw[5:]; len(message) > 0; {
		n := min(size, len(message))
		out = append(out, record(recordHandshake, message[:n])...)
		message = message[n:]
	}
	return out
}

type extension struct {
	kind uint16
	data []byte
}

func serverName(names ...string) extension {
	var list []byte
	for _, n := range names {
		list = append(list, 0)
		list = binary.BigEndian.AppendUint16(list, uint16(len(n)))
		list = append(list, n...)
	}
	return extension{extensionName, append(binary.BigEndian.AppendUint16(nil, uint16(len(list))), list...)}
}

// makeHello returns a ClientHello with these extensions, as one message.
func makeHello(extensions ...extension) []byte {
	body := append([]byte{3, 3}, make([]byte, 32)...)
	body = append(body, 0, 0, 2, 0x13, 1, 1, 0)
	var all []byte
	for _, e := range extensions {
		all = binary.BigEndian.AppendUint16(all, e.kind)
		all = binary.BigEndian.AppendUint16(all, uint16(len(e.data)))
		all = append(all, e.data...)
	}
	body = append(binary.BigEndian.AppendUint16(body, uint16(len(all))), all...)
	return append([]byte{messageHello, byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body))}, body...)
}

func TestReadHello(t *testing.T) {
	real := helloOf(t, "www.acme.org")
	for _, c := range []struct {
		what string
		raw  []byte
		want clientHello
		err  error // nil: none; errAny: any
	}{
		{"of crypto/tls", real, clientHello{name: "www.acme.org"}, nil},
		{"without a name", helloOf(t, ""), clientHello{}, nil},
		{"in records of 100 bytes", fragmented(real, 100), clientHello{name: "www.acme.org"}, nil},
		{"in records of 3 bytes", fragmented(real, 3), clientHello{name: "www.acme.org"}, nil},
		{"without extensions", record(22, append([]byte{1, 0, 0, 41, 3, 3}, append(make([]byte, 32), 0, 0, 2, 0x13, 1, 1, 0)...)), clientHello{}, nil},
		{"with ECH", record(22, makeHello(serverName("a.org"), extension{extensionECH, []byte{0}})), clientHello{name: "a.org", ech: true}, nil},
		{"two names in one extension", record(22, makeHello(serverName("a.org", "b.org"))), clientHello{}, errAny},
		{"two extensions", record(22, makeHello(serverName("a.org"), serverName("b.org"))), clientHello{}, errAny},
		{"an empty name", record(22, makeHello(serverName(""))), clientHello{}, errAny},
		{"another record between", append(fragmented(real, 100)[:105], append(record(20, []byte{1}), fragmented(real, 100)[105:]...)...), clientHello{}, errNotTLS},
		{"an empty record", append(record(22, nil), real...), clientHello{}, errHello},
		{"two messages in one record", record(22, append(makeHello(serverName("a.org")), makeHello(serverName("b.org"))...)), clientHello{}, errHello},
		{"another message", record(22, []byte{2, 0, 0, 0}), clientHello{}, errNotTLS},
		{"a length beyond the limit", record(22, []byte{1, 255, 255, 255}), clientHello{}, errAny},
		{"records beyond the limit", fragmented(record(22, append([]byte{1, 0, 0x7f, 0}, make([]byte, 0x7f00)...)), 1), clientHello{}, errAny},
		{"cut off", real[:len(real)-1], clientHello{}, io.ErrUnexpectedEOF},
		{"HTTP", []byte("GET / HTTP/1.1\r\n\r\n"), clientHello{}, errNotTLS},
		{"SSH", []byte("SSH-2.0-x\r\n"), clientHello{}, errNotTLS},
		{"SSL 2", []byte{0x80, 0x2e, 1, 0, 2, 0, 0, 0}, clientHello{}, errNotTLS},
	} {
		// What follows the hello must stay unread.
		r := bytes.NewReader(append(bytes.Clone(c.raw), "rest"...))
		if errors.Is(c.err, io.ErrUnexpectedEOF) {
			r = bytes.NewReader(c.raw)
		}
		raw, hello, err := readHello(r)
		switch {
		case c.err == nil && (err != nil || hello != c.want || !bytes.Equal(raw, c.raw)):
			t.Errorf("%s: %+v, %v; want %+v", c.what, hello, err, c.want)
		case errors.Is(c.err, errAny) && err == nil, c.err != nil && !errors.Is(c.err, errAny) && !errors.Is(err, c.err):
			t.Errorf("%s: %v, want %v", c.what, err, c.err)
		case len(raw) > maxHello:
			t.Errorf("%s: %d bytes are kept", c.what, len(raw))
		}
	}
}

var errAny = errors.New("any")

func FuzzClientHello(f *testing.F) {
	real := helloOf(f, "www.acme.org")
	f.Add(real)
	f.Add(fragmented(real, 50))
	f.Add(record(22, makeHello(serverName("a.org"), extension{extensionECH, []byte{0}})))
	f.Add(record(22, makeHello(serverName("a", "b"))))
	f.Fuzz(func(t *testing.T, b []byte) {
		raw, hello, err := readHello(bytes.NewReader(b))
		if len(raw) > maxHello || !bytes.HasPrefix(b, raw) {
			t.Errorf("%d bytes are kept, which must be the first of those sent", len(raw))
		}
		if err == nil && len(hello.name) > len(raw) {
			t.Errorf("%+v", hello)
		}
		if isServerHello(b) && err == nil {
			t.Error("a ClientHello is taken for a ServerHello")
		}
	})
}
