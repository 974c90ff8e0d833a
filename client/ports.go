package client

import (
	"context"
	"errors"
	"io"
	"net/url"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/coder/websocket"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Ports lists the TCP ports on which programs in the session listen.
func (s *Session) Ports(ctx context.Context) ([]v1.Port, error) {
	r := get("list ports", s.path+"/ports", nil)
	return collect(list(ctx, s.c, r, 0, func(p v1.PortPage) ([]v1.Port, string) { return p.Ports, p.Next }))
}

// WaitPort waits until a program in the session listens on a port. After the timeout, the error has the code
// v1.CodePortClosed. The timeout is at most an hour.
func (s *Session) WaitPort(ctx context.Context, port uint16, timeout time.Duration) (v1.Port, error) {
	q := url.Values{"wait": {timeout.String()}}
	return callJSON[v1.Port](ctx, s.c, get("wait for a port", s.port(port), q))
}

// PortLink returns a link with which a browser can use a port until it expires.
func (s *Session) PortLink(ctx context.Context, port uint16, expires time.Duration) (v1.PortLink, error) {
	r := post("create link", s.port(port)+"/link", v1.PortLinkRequest{ExpiresIn: v1.Duration(expires)})
	return callJSON[v1.PortLink](ctx, s.c, r)
}

func (s *Session) port(port uint16) string { return s.path + "/ports/" + strconv.Itoa(int(port)) }

// DialPort connects to a port in the session. A port on which nothing listens is an error with v1.CodePortClosed. The
// connection lasts until it is closed, also if ctx ends.
func (s *Session) DialPort(ctx context.Context, port uint16) (*PortConn, error) {
	ws, err := s.c.dialSocket(ctx, "connect to a port", s.port(port)+"/connect")
	if err != nil {
		return nil, err
	}
	return &PortConn{ws: ws, ended: make(chan struct{})}, nil
}

// PortConn is a connection to a port in a session. One goroutine may read while another writes.
type PortConn struct {
	ws   *websocket.Conn
	r    io.Reader // the current message; nil: none
	done error     // end of the data: io.EOF or another error

	endOnce sync.Once
	ended   chan struct{} // closed when Read has returned the end of the data
}

// Read implements io.Reader. The error is syscall.ECONNRESET if the connection broke.
func (c *PortConn) Read(p []byte) (int, error) {
	for c.done == nil {
		if c.r == nil {
			kind, r, err := c.ws.Reader(context.Background())
			switch {
			case err != nil:
				c.done = syscall.ECONNRESET
			case kind == websocket.MessageText:
				c.done = io.EOF
			default:
				c.r = r
			}
			continue
		}
		n, err := c.r.Read(p)
		switch {
		case err == io.EOF:
			c.r = nil
		case err != nil:
			c.done = syscall.ECONNRESET
		}
		if n > 0 {
			return n, nil
		}
	}
	c.endOnce.Do(func() { close(c.ended) })
	return 0, c.done
}

// Write implements io.Writer.
func (c *PortConn) Write(p []byte) (int, error) {
	written := 0
	for len(p) > 0 {
		n := min(len(p), inputChunk)
		if err := c.ws.Write(context.Background(), websocket.MessageBinary, p[:n]); err != nil {
			return written, syscall.EPIPE
		}
		written, p = written+n, p[n:]
	}
	return written, nil
}

// CloseWrite ends this side's data. The program inside can still send.
func (c *PortConn) CloseWrite() error {
	return c.ws.Write(context.Background(), websocket.MessageText, []byte(v1.PortEnd))
}

// Reset cuts the connection off: the program inside reads an error.
func (c *PortConn) Reset() { _ = c.ws.CloseNow() }

// Close closes the connection. The program inside sees the end of a connection whose data was ended and read on both
// sides; otherwise it sees that the connection broke.
func (c *PortConn) Close() error {
	select {
	case <-c.ended:
		if errors.Is(c.done, io.EOF) {
			return c.ws.Close(websocket.StatusNormalClosure, "")
		}
	default:
	}
	return c.ws.CloseNow()
}
