package server

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/coder/websocket"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// portRoutes returns the routes of ports inside sandboxes.
func (s *Server) portRoutes() []route {
	const (
		all = "/v1/sessions/{session}/ports"
		one = all + "/{port}"
	)
	theSession := (*call).session
	rs := []route{
		on("GET", all, "ports", "List the TCP ports on which programs listen",
			scopeRead, using(theSession, listPorts)).with(qLimit, qAfter),
		on("GET", one, "ports", "Show a port, or wait until a program listens on it",
			scopeRead, using(theSession, showPort)).
			with(text("wait", "time to wait, such as 30s, at most 1h; nothing listens after it: 502 port_closed")).lasting(),
		on("POST", one+"/link", "ports", "Create a link with which a browser can use the port",
			scopeExecute, using(theSession, linkPort)).succeeding(http.StatusCreated),
		raw[none, none]("GET", one+"/connect", "ports", "Connect to a port over a WebSocket; binary messages are the bytes",
			scopeExecute, rawUsing(theSession, connectPort)).lasting().
			succeeding(http.StatusSwitchingProtocols),
	}
	for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
		r := raw[none, none](method, one+"/http/{path}", "ports", "Send an HTTP request to a port; for programs, not browsers",
			scopeExecute, rawUsing(theSession, proxyPort)).lasting()
		r.proxy = true
		if method == "POST" || method == "PUT" || method == "PATCH" {
			r = r.taking("*/*")
		}
		rs = append(rs, r)
	}
	return rs
}

// port returns the port that the path names.
func (c *call) port() (uint16, error) {
	n, ok := parsePort(c.r.PathValue("port"))
	if !ok {
		return 0, invalid("invalid port %q: want a number from 1 to 65535", c.r.PathValue("port"))
	}
	return n, nil
}

// parsePort parses a port as people write it: without a sign, a space or a leading zero.
func parsePort(text string) (uint16, bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	return uint16(n), err == nil && n > 0 && strconv.FormatUint(n, 10) == text
}

func listPorts(c *call, ses *session.Session, _ none) (v1.PortPage, error) {
	ports, err := ses.Ports(c.ctx())
	if err != nil {
		return v1.PortPage{}, err
	}
	var out v1.PortPage
	out.Ports, out.Next = paged(c, ports, func(p sandbox.Port) string {
		return strconv.Itoa(1e5+p.Port) + "!" + p.Address
	})
	return out, nil
}

// maxPortWait bounds the wait for a port.
const maxPortWait = time.Hour

func showPort(c *call, ses *session.Session, _ none) (sandbox.Port, error) {
	port, err := c.port()
	if err != nil {
		return sandbox.Port{}, err
	}
	var wait time.Duration
	if text := c.query.Get("wait"); text != "" {
		if wait, err = time.ParseDuration(text); err != nil || wait < 0 || wait > maxPortWait {
			return sandbox.Port{}, badQuery("wait", "a duration such as 30s, at most 1h")
		}
	}
	ctx, cancel := c.untilDrain()
	defer cancel()
	p, err := ses.WaitPort(ctx, port, wait)
	return p, c.drained(err)
}

// connectPort copies between a WebSocket and a port inside. It connects inside first, so that a caller whose port is
// closed gets a problem.
func connectPort(c *call, ses *session.Session) error {
	port, err := c.port()
	if err != nil {
		return err
	}
	if c.r.Header.Get("Upgrade") == "" {
		return &v1.Error{Code: v1.CodeWebSocket, Op: "open WebSocket", Message: "this route requires a WebSocket"}
	}
	ctx, cancel := c.untilDrain()
	defer cancel()
	inside, err := ses.DialPort(ctx, port)
	if err != nil {
		return c.drained(err)
	}
	defer inside.Close()
	conn, err := c.acceptSocket()
	if err != nil {
		return err
	}
	defer conn.CloseNow() //nolint:errcheck // it is already closed, except after an error
	conn.SetReadLimit(-1) // messages are copied in parts
	stop := context.AfterFunc(ctx, inside.Reset)
	defer stop()
	received := make(chan struct{})
	go func() {
		defer close(received)
		if receiveBytes(ctx, conn, inside) != nil {
			inside.Reset() // ends the other direction
		}
	}()
	if sendBytes(ctx, conn, inside) != nil {
		_ = conn.Close(websocket.StatusInternalError, "the connection to the port broke") // or that to the caller
	}
	<-received
	return nil
}

// receiveBytes copies the caller's bytes to a port until the caller ends them.
func receiveBytes(ctx context.Context, conn *websocket.Conn, to sandbox.PortConn) error {
	buf := make([]byte, portChunk)
	for {
		kind, r, err := conn.Reader(ctx)
		if err != nil {
			return err
		}
		if kind == websocket.MessageBinary {
			if _, err := io.CopyBuffer(struct{ io.Writer }{to}, r, buf); err != nil {
				return err
			}
			continue
		}
		text, err := io.ReadAll(io.LimitReader(r, int64(len(v1.PortEnd)+1)))
		if err != nil {
			return err
		}
		if string(text) != v1.PortEnd {
			return invalid("a text message must be %q", v1.PortEnd)
		}
		if err := to.CloseWrite(); err != nil {
			return err
		}
		// The caller closes the connection when it has read everything, or has given up.
		if _, _, err := conn.Reader(ctx); websocket.CloseStatus(err) == websocket.StatusNormalClosure {
			return nil
		}
		return io.ErrUnexpectedEOF
	}
}

// portChunk is how many bytes of a port a message has at most.
const portChunk = 32 << 10

// sendBytes copies the bytes of a port to the caller until the program inside ends them.
func sendBytes(ctx context.Context, conn *websocket.Conn, from io.Reader) error {
	buf := make([]byte, portChunk)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if err := conn.Write(ctx, websocket.MessageBinary, buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return conn.Write(ctx, websocket.MessageText, []byte(v1.PortEnd))
		}
		if err != nil {
			return err
		}
	}
}
