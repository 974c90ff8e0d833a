package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"

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
	defer conn.CloseNow() //nolint:errcheck // it has been closed in order, or is lost
	first := r.body
	first.Stdin = r.Stdin != nil
	if err := sendControl(ctx, conn, first); err != nil {
		return nil, unreachable(ctx, r.op, err)
	}
	over, end := context.WithCancel(ctx)
	defer end()
	if r.Stdin != nil {
		go feed(over, conn, r.Stdin)
	}
	if r.resize != nil {
		go forward(over, conn, r.resize)
	}
	v, err := r.converse(ctx, conn)
	if err == nil {
		_ = conn.Close(websocket.StatusNormalClosure, "") // the server closes it as well
		return v, nil
	}
	if !interrupted(err) {
		return nil, err
	}
	return r.again(ctx, err)
}

// dial connects, as long as patience and ctx allow.
func (r *running) dial(ctx context.Context) (*websocket.Conn, error) {
	c := r.s.c
	p := c.patience()
	for {
		h := http.Header{}
		c.headers(ctx, h)
		conn, res, err := websocket.Dial(ctx, c.base+r.s.path+"/stream", &websocket.DialOptions{HTTPClient: c.http, HTTPHeader: h})
		if err == nil {
			conn.SetReadLimit(maxMessage)
			return conn, nil
		}
		if res != nil && res.StatusCode >= 300 {
			defer res.Body.Close()
			return nil, problem(r.op, res)
		}
		if !p.wait(ctx) {
			return nil, unreachable(ctx, r.op, err)
		}
	}
}

// converse hands on what the server tells until the verdict.
func (r *running) converse(ctx context.Context, conn *websocket.Conn) (*v1.Verdict, error) {
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

// feed sends input. A reader that blocks for ever is left behind: Go cannot interrupt it.
func feed(ctx context.Context, conn *websocket.Conn, stdin io.Reader) {
	buf := make([]byte, 1+inputChunk)
	buf[0] = v1.FrameStdin
	for {
		n, err := stdin.Read(buf[1:])
		if ctx.Err() != nil {
			return
		}
		if n > 0 && conn.Write(ctx, websocket.MessageBinary, buf[:n+1]) != nil {
			return
		}
		if err != nil {
			_ = sendControl(ctx, conn, v1.Control{StdinEnd: true}) // it has ended otherwise
			return
		}
	}
}

// forward sends the terminal's sizes.
func forward(ctx context.Context, conn *websocket.Conn, sizes <-chan v1.Size) {
	for {
		select {
		case <-ctx.Done():
			return
		case z, ok := <-sizes:
			if !ok || sendControl(ctx, conn, v1.Control{Resize: &v1.Size{Rows: max(1, z.Rows), Cols: max(1, z.Cols)}}) != nil {
				return
			}
		}
	}
}
