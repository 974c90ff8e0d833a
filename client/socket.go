package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/coder/websocket"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// maxMessage is the maximum size of a message from the server. The largest is a verdict with images.
const maxMessage = 256 << 20

// inputChunk is the maximum size of an input message.
const inputChunk = 32 << 10

// socket runs the operation over a WebSocket. It can send input, and receives output as bytes: server-sent events cost
// several times as much.
func (r *running) socket(ctx context.Context) (*v1.Verdict, error) {
	conn, err := r.dial(ctx)
	if err != nil {
		return nil, err
	}
	first := r.body
	first.Stdin = r.Stdin != nil
	inputCtx, stopInput := context.WithCancel(ctx)
	defer stopInput()
	l := newLiveConn()
	if r.Stdin != nil {
		go sendInput(inputCtx, l, r.Stdin)
	}
	if r.resize != nil {
		go sendSizes(inputCtx, l, r.resize)
	}
	v, err := r.exchange(ctx, l, conn, first)
	if !r.interrupted(err) {
		return v, err
	}
	if r.pty {
		return r.reattach(ctx, l, err)
	}
	return r.reconnect(ctx, err)
}

// reattach continues a terminal whose connection was lost. The server keeps the terminal for a while. If the server
// does not know the terminal, it never began, and reattach returns the first error.
func (r *running) reattach(ctx context.Context, l *liveConn, lost error) (*v1.Verdict, error) {
	retry := r.s.c.retryTimer()
	for retry.wait(ctx) {
		conn, err := r.dial(ctx)
		if serverGone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		before := r.at
		attach := &v1.Attach{ID: r.ID, Stdout: &before.Stdout, Stderr: &before.Stderr}
		v, err := r.exchange(ctx, l, conn, v1.Control{Attach: attach})
		switch {
		case v1.CodeOf(err) == v1.CodeNotFound:
			return nil, lost
		case !serverGone(err):
			return v, err
		case r.at != before:
			retry = r.s.c.retryTimer() // there was progress
		}
	}
	return nil, lost
}

// dial connects.
func (r *running) dial(ctx context.Context) (*websocket.Conn, error) {
	return r.s.c.dialSocket(ctx, r.op, r.s.path+"/stream")
}

// dialSocket opens a WebSocket. While the server cannot be reached, it retries until RetryTime or ctx ends.
func (c *Client) dialSocket(ctx context.Context, op, path string) (*websocket.Conn, error) {
	retry, limit := c.retryTimer(), c.rateWait()
	for {
		h := http.Header{}
		c.headers(ctx, h)
		opts := &websocket.DialOptions{HTTPClient: c.http, HTTPHeader: h}
		conn, res, err := websocket.Dial(ctx, c.base+path, opts)
		if err == nil {
			conn.SetReadLimit(maxMessage)
			return conn, nil
		}
		if res != nil && res.StatusCode >= 300 {
			err := problem(op, res)
			res.Body.Close()
			if limit.wait(ctx, rateLimitHeader(res)) {
				continue
			}
			return nil, err
		}
		lost := unreachable(ctx, op, err)
		if !interrupted(lost) || !retry.wait(ctx) {
			return nil, lost
		}
	}
}

// exchange sends the first message, and handles messages of the server until the verdict.
func (r *running) exchange(
	ctx context.Context,
	l *liveConn,
	conn *websocket.Conn,
	first v1.Control,
) (*v1.Verdict, error) {
	defer conn.CloseNow() //nolint:errcheck // the connection is already closed, or lost
	if err := sendControl(ctx, conn, first); err != nil {
		return nil, unreachable(ctx, r.op, err)
	}
	l.set(conn)
	defer l.drop(conn)
	v, err := r.readSocket(ctx, conn)
	if err == nil {
		_ = conn.Close(websocket.StatusNormalClosure, "") // the server also closes the connection
	}
	return v, err
}

// readSocket handles messages of the server until the verdict.
func (r *running) readSocket(ctx context.Context, conn *websocket.Conn) (*v1.Verdict, error) {
	for {
		kind, raw, err := conn.Read(ctx)
		if err != nil {
			return nil, unreachable(ctx, r.op, err)
		}
		if kind == websocket.MessageBinary {
			if len(raw) > 1 {
				r.output(raw[0] == v1.FrameStderr, raw[1:])
			}
			continue
		}
		var m v1.Control
		if err := json.Unmarshal(raw, &m); err != nil {
			return nil, malformed(r.op, err)
		}
		switch {
		case m.Verdict != nil:
			return m.Verdict, nil
		case m.Problem != nil:
			return nil, m.Problem.Err()
		case m.Skipped != nil:
			r.skipped(*m.Skipped)
		case m.Display != nil && r.display != nil:
			r.display(*m.Display)
		}
	}
}

func sendControl(ctx context.Context, conn *websocket.Conn, m v1.Control) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return conn.Write(ctx, websocket.MessageText, b)
}

// liveConn is the current connection to the server. It can be lost and replaced.
type liveConn struct {
	mu   sync.Mutex
	conn *websocket.Conn // guarded by mu; nil while there is no connection
	up   chan struct{}   // guarded by mu; closed while there is a connection
}

func newLiveConn() *liveConn { return &liveConn{up: make(chan struct{})} }

// set sets the current connection.
func (l *liveConn) set(conn *websocket.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = conn
	close(l.up)
}

// drop removes a lost connection, if it is the current one.
func (l *liveConn) drop(conn *websocket.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == conn {
		l.conn, l.up = nil, make(chan struct{})
	}
}

// write sends a message over the current connection, or waits for the next one. It returns an error only if ctx ends.
func (l *liveConn) write(ctx context.Context, kind websocket.MessageType, msg []byte) error {
	for {
		l.mu.Lock()
		conn, up := l.conn, l.up
		l.mu.Unlock()
		if conn != nil && conn.Write(ctx, kind, msg) == nil {
			return nil
		}
		if conn != nil {
			l.drop(conn)
			continue
		}
		select {
		case <-up:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *liveConn) control(ctx context.Context, m v1.Control) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return l.write(ctx, websocket.MessageText, b)
}

// sendInput sends the input until its end. If stdin blocks forever, the goroutine leaks: Go cannot interrupt a Read.
func sendInput(ctx context.Context, l *liveConn, stdin io.Reader) {
	buf := make([]byte, 1+inputChunk)
	buf[0] = v1.FrameStdin
	for {
		n, err := stdin.Read(buf[1:])
		if ctx.Err() != nil {
			return
		}
		if n > 0 && l.write(ctx, websocket.MessageBinary, buf[:n+1]) != nil {
			return
		}
		if errors.Is(err, v1.ErrInputLeft) {
			return
		}
		if err != nil {
			_ = l.control(ctx, v1.Control{StdinEnd: true}) // fails only if the operation has ended
			return
		}
	}
}

// sendSizes sends the sizes of the terminal.
func sendSizes(ctx context.Context, l *liveConn, sizes <-chan v1.Size) {
	for {
		select {
		case <-ctx.Done():
			return
		case z, ok := <-sizes:
			if !ok || l.control(ctx, v1.Control{Resize: &v1.Size{Rows: max(1, z.Rows), Cols: max(1, z.Cols)}}) != nil {
				return
			}
		}
	}
}
