//go:build linux

package network

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// The ports of 127.0.0.1 on which the proxies listen.
const (
	httpProxyPort  = 3128
	socksProxyPort = 1080
)

const (
	maxAsking   = 256              // connections to proxies that have not said yet what they want
	askTimeout  = 10 * time.Second // for the request to a proxy
	maxHead     = 64 << 10         // of an HTTP request to a proxy
	proxyBuffer = 4 << 10
	maxDrain    = 64 << 10 // of what a client sends although it was refused
	drainTime   = 2 * time.Second
)

// listenProxies starts the proxies that do not listen yet. A port that a program inside uses is left to it.
//
// Preconditions: mu is held.
func (n *Network) listenProxies() {
	for i, p := range []struct {
		port  int
		serve func(*net.TCPConn, *bufio.Reader)
	}{{httpProxyPort, n.serveHTTP}, {socksProxyPort, n.serveSOCKS}} {
		if n.proxies[i] {
			continue
		}
		l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: p.port})
		if err != nil {
			continue
		}
		n.proxies[i] = true
		go acceptAll(l, func(c *net.TCPConn) {
			n.asking <- struct{}{}
			go func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(askTimeout)) // fails only if the connection is closed
				p.serve(c, bufio.NewReaderSize(c, proxyBuffer))
			}()
		})
	}
}

// dial opens a connection for a program that waits for the answer. It ends the time for the program's request.
func (n *Network) dial(c *net.TCPConn, to destination) (*wire.Stream, *wire.Error) {
	<-n.asking
	_ = c.SetDeadline(time.Time{}) // fails only if the connection is closed
	if !n.on.Load() {
		return nil, wire.Errorf("policy", "the network policy allows nothing")
	}
	st, err := n.host.Connect(&wire.Connect{
		Name:     to.host,
		Port:     uint32(to.port),
		Owner:    n.owner(socket{"tcp", addrPort(c.RemoteAddr())}),
		Explicit: true,
	})
	if err != nil {
		return nil, wire.Errorf("closing", "no program is attached to the sandbox")
	}
	if e := opened(st); e != nil {
		st.Close()
		return nil, e
	}
	return st, nil
}

// destination is what a program asks a proxy for.
type destination struct {
	host string // name or address; the host checks it
	port uint16
}

// errRequest is the error of a request that a proxy cannot serve.
type errRequest string

func (e errRequest) Error() string { return string(e) }

// serveHTTP serves a connection to the HTTP proxy.
func (n *Network) serveHTTP(c *net.TCPConn, r *bufio.Reader) {
	req, err := readProxyRequest(r)
	if err != nil {
		<-n.asking
		if bad, ok := errors.AsType[errRequest](err); ok {
			answer(c, "400 Bad Request", "request", bad.Error())
		}
		return
	}
	st, refused := n.dial(c, req.to)
	if refused != nil {
		answer(c, httpStatus(refused.Code), refused.Code, refused.Message)
		return
	}
	if req.head == nil {
		if _, err := io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
			st.Connection().Reset()
			return
		}
	}
	n.splice(c, io.MultiReader(bytes.NewReader(req.head), r), st, nil)
}

// answer sends a refusal. What the client still sends is read, because otherwise the answer would be lost in a reset.
func answer(c *net.TCPConn, status, kind, message string) {
	body := "recluse: " + message + "\n"
	_, err := fmt.Fprintf(c, "HTTP/1.1 %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n"+
		"Connection: close\r\nX-Recluse-Denied: %s\r\n\r\n%s", status, len(body), kind, body)
	if err == nil && c.CloseWrite() == nil {
		_ = c.SetReadDeadline(time.Now().Add(drainTime)) // fails only if the connection is closed
		_, _ = io.CopyN(io.Discard, c, maxDrain)
	}
}

// httpStatus returns the status for the kind of a refusal of the host, see egress.RefusalKind.
func httpStatus(kind string) string {
	switch kind {
	case "not_found", "unreachable":
		return "502 Bad Gateway"
	case "timeout":
		return "504 Gateway Timeout"
	case "closing":
		return "503 Service Unavailable"
	}
	return "403 Forbidden"
}

// proxyRequest is a request to an HTTP proxy.
type proxyRequest struct {
	to   destination
	head []byte // of the request to the server; nil: CONNECT
}

// readProxyRequest reads the head of a request. An errRequest is answered, other errors are not.
func readProxyRequest(r *bufio.Reader) (req proxyRequest, err error) {
	var head []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(head)+len(part) > maxHead {
			return req, errRequest("the head of the request is larger than 64 KiB")
		}
		head = append(head, part...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return req, err
		}
		if len(bytes.TrimRight(part, "\r\n")) == 0 {
			break
		}
	}
	lines := strings.Split(strings.TrimRight(string(head), "\r\n"), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSuffix(line, "\r")
		if strings.ContainsAny(lines[i], "\r\x00") {
			return req, errRequest("a control character in the head of the request")
		}
	}
	parts := strings.Split(lines[0], " ")
	if len(parts) != 3 || parts[2] != "HTTP/1.1" && parts[2] != "HTTP/1.0" {
		return req, errRequest("this is an HTTP/1 proxy, and the request is not HTTP/1")
	}
	if parts[0] == "CONNECT" {
		req.to, err = parseDestination(parts[1], "")
		return req, err
	}
	target, err := url.Parse(parts[1])
	if err != nil || target.Scheme != "http" || target.Host == "" {
		return req, errRequest("this is a proxy: it serves CONNECT and requests for http:// URLs")
	}
	if req.to, err = parseDestination(target.Host, "80"); err != nil {
		return req, err
	}
	req.head = serverHead(parts[0], parts[2], target, lines[1:])
	return req, nil
}

// serverHead returns the head for the server. Each connection carries one request, because the next one may be for
// another host.
func serverHead(method, version string, target *url.URL, headers []string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s %s\r\nHost: %s\r\n", method, target.RequestURI(), version, target.Host)
	connection := "close"
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ":")
		switch strings.ToLower(name) {
		case "host", "proxy-connection", "proxy-authorization", "keep-alive":
		case "connection":
			if strings.EqualFold(strings.TrimSpace(value), "upgrade") { // to a WebSocket
				connection = "Upgrade"
			}
		default:
			b.WriteString(line + "\r\n")
		}
	}
	b.WriteString("Connection: " + connection + "\r\n\r\n")
	return b.Bytes()
}

// parseDestination parses host:port. Without a port it uses the given one, if there is one.
func parseDestination(text, port string) (destination, error) {
	host, p, err := net.SplitHostPort(text)
	if err != nil && port != "" {
		host, p, err = net.SplitHostPort(net.JoinHostPort(strings.Trim(text, "[]"), port))
	}
	number, perr := strconv.ParseUint(p, 10, 16)
	if err != nil || perr != nil || host == "" || number == 0 {
		return destination{}, errRequest(fmt.Sprintf("invalid destination %q: it must be a host and a port", text))
	}
	return destination{host, uint16(number)}, nil
}

// Replies of SOCKS5, RFC 1928.
const (
	socksVersion = 5
	socksConnect = 1

	socksOK, socksFailed, socksDenied, socksUnreachable, socksExpired, socksNoCommand, socksNoAddress = 0, 1, 2, 4, 6, 7, 8

	socksNoMethod = 0xff

	socksIPv4, socksName, socksIPv6 = 1, 3, 4
)

// serveSOCKS serves a connection to the SOCKS5 proxy.
func (n *Network) serveSOCKS(c *net.TCPConn, r *bufio.Reader) {
	to, code, err := readSOCKS(r, c)
	if err != nil || code != socksOK {
		<-n.asking
		if err == nil {
			_ = socksReply(c, code) // the client has gone otherwise
		}
		return
	}
	st, refused := n.dial(c, to)
	if refused != nil {
		_ = socksReply(c, socksCode(refused.Code)) // the client has gone otherwise
		return
	}
	if socksReply(c, socksOK) != nil {
		st.Connection().Reset()
		return
	}
	n.splice(c, r, st, nil)
}

// readSOCKS reads a request. It answers the client's list of methods on the way.
func readSOCKS(r io.Reader, w io.Writer) (to destination, code byte, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:2]); err != nil {
		return to, 0, err
	}
	if head[0] != socksVersion {
		return to, 0, errRequest("not SOCKS5")
	}
	methods := make([]byte, head[1])
	if _, err := io.ReadFull(r, methods); err != nil {
		return to, 0, err
	}
	if !bytes.Contains(methods, []byte{0}) { // no authentication
		_, err := w.Write([]byte{socksVersion, socksNoMethod})
		return to, 0, errors.Join(errRequest("no method"), err)
	}
	if _, err := w.Write([]byte{socksVersion, 0}); err != nil {
		return to, 0, err
	}
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return to, 0, err
	}
	size := 0
	switch head[3] {
	case socksIPv4:
		size = 4
	case socksIPv6:
		size = 16
	case socksName:
		var length [1]byte
		if _, err := io.ReadFull(r, length[:]); err != nil {
			return to, 0, err
		}
		size = int(length[0])
	default:
		return to, socksNoAddress, nil
	}
	addr := make([]byte, size+2)
	if _, err := io.ReadFull(r, addr); err != nil {
		return to, 0, err
	}
	to = destination{string(addr[:size]), binary.BigEndian.Uint16(addr[size:])}
	if head[3] != socksName {
		a, _ := netip.AddrFromSlice(addr[:size])
		to.host = a.String()
	}
	switch {
	case head[0] != socksVersion:
		return to, socksFailed, nil
	case head[1] != socksConnect:
		return to, socksNoCommand, nil
	}
	return to, socksOK, nil
}

// socksReply sends a reply. The address in it has no meaning here.
func socksReply(w io.Writer, code byte) error {
	_, err := w.Write([]byte{socksVersion, code, 0, socksIPv4, 0, 0, 0, 0, 0, 0})
	return err
}

// socksCode returns the reply for the kind of a refusal of the host.
func socksCode(kind string) byte {
	switch kind {
	case "not_found", "unreachable":
		return socksUnreachable
	case "timeout":
		return socksExpired
	case "closing":
		return socksFailed
	}
	return socksDenied
}
