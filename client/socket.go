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

// maxMessage bounds what the server sends at once: a verdict with images.
const maxMessage = 256 << 20

// inputChunk is how much input is sent at once.
const inputChunk = 32 << 10

// socket runs it over a WebSocket, where input can go along and output comes as bytes: as events it costs several times as much.
func (r *running) socket(ctx context.Context) (*v1.Verdict, error) {
	conn, err := r.dial(ctx)
	if err != nil {
		return nil, err
	}
	first := r.body
	first.Stdin = r.Stdin != nil
	over, end := context.WithCancel(ctx)
	defer end()
	l := newLine()
	if r.Stdin != nil {
		go feed(over, l, r.Stdin)
	}
	if r.resize != nil {
		go forward(over, l, r.resize)
	}
	v, err := r.converse(ctx, l, conn, first)
	if !r.interrupted(err) {
		return v, err
	}
	if r.pty {
		return r.reattach(ctx, l, err)
	}
	return r.again(ctx, err)
}

// reattach goes on with a terminal whose connection was lost: the server keeps it for a while. If the server does not know it, it never
// began: the error is then the first one.
func (r *running) reattach(ctx context.Context, l *line, lost error) (*v1.Verdict, error) {
	p := r.s.c.patience()
	for p.wait(ctx) {
		conn, err := r.dial(ctx)
		if away(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		before := r.at
		v, err := r.converse(ctx, l, conn, v1.Control{Attach: &v1.Attach{ID: r.ID, Stdout: &before.Stdout, Stderr: &before.Stderr}})
		switch {
		case v1.CodeOf(err) == v1.CodeNotFound:
			return nil, lost
		case !away(err):
			return v, err
		case r.at != before:
			p = r.s.c.patience() // it moved
		}
	}
	return nil, lost
}

// dial connects, as long as patience and ctx allow.
func (r *running) dial(ctx context.Context) (*websocket.Conn, error) {
	c := r.s.c
	p, limit := c.patience(), c.rateWait()
	for {
		h := http.Header{}
		c.headers(ctx, h)
		conn, res, err := websocket.Dial(ctx, c.base+r.s.path+"/stream", &websocket.DialOptions{HTTPClient: c.http, HTTPHeader: h})
		if err == nil {
			conn.SetReadLimit(maxMessage)
			return conn, nil
		}
		if res != nil && res.StatusCode >= 300 {
			err := problem(r.op, res)
			res.Body.Close()
			if limit.wait(ctx, limited(res)) {
				continue
			}
			return nil, err
		}
		lost := unreachable(ctx, r.op, err)
		if !interrupted(lost) || !p.wait(ctx) {
			return nil, lost
		}
	}
}

// converse asks for something, and hands on what the server tells until the verdict.
func (r *running) converse(ctx context.Context, l *line, conn *websocket.Conn, first v1.Control) (*v1.Verdict, error) {
	defer conn.CloseNow() //nolint:errcheck // it has been closed in order, or is lost
	if err := sendControl(ctx, conn, first); err != nil {
		return nil, unreachable(ctx, r.op, err)
	}
	l.set(conn)
	defer l.drop(conn)
	v, err := r.hearSocket(ctx, conn)
	if err == nil {
		_ = conn.Close(websocket.StatusNormalClosure, "") // the server closes it as well
	}
	return v, err
}

// hearSocket hands on what the server tells until the verdict.
func (r *running) hearSocket(ctx context.Context, conn *websocket.Conn) (*v1.Verdict, error) {
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

// line is the connection to the server, which may be lost and made again.
type line struct {
	mu   sync.Mutex
	conn *websocket.Conn // guarded by mu; nil: lost
	up   chan struct{}   // guarded by mu; closed when there is a connection
}

func newLine() *line { return &line{up: make(chan struct{})} }

// set makes a connection the one of now.
func (l *line) set(conn *websocket.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = conn
	close(l.up)
}

// drop gives a connection up that was lost.
func (l *line) drop(conn *websocket.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == conn {
		l.conn, l.up = nil, make(chan struct{})
	}
}

// write sends a message over the connection of now, or the next one. Its error is that of ctx.
func (l *line) write(ctx context.Context, kind websocket.MessageType, msg []byte) error {
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

func (l *line) control(ctx context.Context, m v1.Control) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return l.write(ctx, websocket.MessageText, b)
}

// feed sends input. A reader that blocks for ever is left behind: Go cannot interrupt it.
func feed(ctx context.Context, l *line, stdin io.Reader) {
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
			_ = l.control(ctx, v1.Control{StdinEnd: true}) // it has ended otherwise
			return
		}
	}
}

// forward sends the terminal's sizes.
func forward(ctx context.Context, l *line, sizes <-chan v1.Size) {
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
