package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
)

const (
	maxMessage = 32 << 20 // bytes of one message
	endWait    = 15 * time.Second
)

// StdioOptions says what one process serves.
type StdioOptions struct {
	Options
	Session string // of the process
	Keep    bool   // do not end it with the process
}

// Serve speaks MCP over in and out until in ends or ctx does. The session is made by the first call that needs it, and ended with the
// connection if it was made here.
func Serve(ctx context.Context, c *client.Client, in io.Reader, out io.Writer, o StdioOptions) (err error) {
	present, leave := context.WithCancel(ctx)
	defer leave()
	var mu sync.Mutex
	var made []belonging // guarded by mu
	l := &link{client: c, own: o.Session, gone: present, made: func(_ *sdk.ServerSession, b belonging) {
		mu.Lock()
		defer mu.Unlock()
		made = append(made, b)
	}}
	f := newFace(o.Options, func(*sdk.RequestExtra, *sdk.ServerSession) (*link, error) { return l, nil })
	defer func() {
		f.subscriptions.close()
		if o.Keep {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWait)
		defer cancel()
		mu.Lock()
		defer mu.Unlock()
		for _, b := range made {
			err = errors.Join(err, b.end(ctx, c))
		}
	}()
	t := &stdio{in: in, out: out, leave: leave}
	err = f.server.Run(ctx, t)
	if errors.Is(err, io.EOF) || ctx.Err() != nil || t.deaf.Load() {
		err = nil
	}
	if err != nil {
		err = &v1.Error{Code: v1.CodeProtocol, Op: "serve MCP", Message: "the connection broke", Err: err}
	}
	return err
}

// stdio is the SDK's transport over lines, behind a reader that lets only messages through: the SDK gives a connection up at the first
// line it cannot read, and a client with one bad message would lose its machine.
type stdio struct {
	in    io.Reader
	out   io.Writer
	leave func() // called when in ends, or nobody reads out
	deaf  atomic.Bool

	mu        sync.Mutex      // guards what follows, and writing to out
	cancelled map[string]bool // ids of requests that the client has given up and must not be answered
}

// Connect implements sdk.Transport.
func (s *stdio) Connect(ctx context.Context) (sdk.Connection, error) {
	r, w := io.Pipe()
	go func() {
		err := s.pass(w)
		s.leave() // what still runs for a client that has gone is cancelled
		_ = w.CloseWithError(err)
	}()
	return (&sdk.IOTransport{Reader: r, Writer: s, MaxLineLength: maxMessage + 1}).Connect(ctx)
}

// Write implements io.Writer; messages come whole.
func (s *stdio) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.cancelled) > 0 {
		var head struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
		}
		if json.Unmarshal(b, &head) == nil && head.Method == "" && s.cancelled[string(head.ID)] {
			delete(s.cancelled, string(head.ID))
			return len(b), nil
		}
	}
	n, err := s.out.Write(b)
	if err != nil {
		s.deaf.Store(true)
		s.leave()
	}
	return n, err
}

// maxCancelled bounds how many requests are remembered as given up. One whose answer was on its way stays.
const maxCancelled = 1000

// note looks for a request that the client gives up.
func (s *stdio) note(line []byte) {
	if !bytes.Contains(line, []byte("notifications/cancelled")) {
		return
	}
	var m struct {
		Method string `json:"method"`
		Params struct {
			ID json.RawMessage `json:"requestId"`
		} `json:"params"`
	}
	if json.Unmarshal(line, &m) != nil || m.Method != "notifications/cancelled" || len(m.Params.ID) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancelled == nil || len(s.cancelled) >= maxCancelled {
		s.cancelled = map[string]bool{}
	}
	s.cancelled[string(m.Params.ID)] = true
}

// Close implements io.Closer. The descriptors belong to whoever gave them.
func (s *stdio) Close() error { return nil }

// pass hands good lines on and answers bad ones. It returns how the input ended.
func (s *stdio) pass(w io.Writer) error {
	r := bufio.NewReaderSize(s.in, 64<<10)
	for {
		line, err := readLine(r)
		if err != nil && !errors.Is(err, bufio.ErrTooLong) {
			return err
		}
		if err == nil && len(line) == 0 {
			continue
		}
		if err == nil {
			err = acceptable(line)
		}
		if err != nil {
			if _, err := s.Write(refusal(line, err)); err != nil {
				return err
			}
			continue
		}
		s.note(line)
		if _, err := w.Write(append(line, '\n')); err != nil {
			return err
		}
	}
}

// readLine gives a line without its end, or ErrTooLong for one that was passed over. A last line without an end is half a message.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	long := false
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > maxMessage {
			long, line = true, nil
		}
		if !long {
			line = append(line, part...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if long {
			return nil, bufio.ErrTooLong
		}
		return bytes.TrimSpace(line), nil
	}
}

func acceptable(line []byte) error {
	if !json.Valid(line) {
		return &jsonrpc.Error{Code: jsonrpc.CodeParseError, Message: "this line is not JSON"}
	}
	if line[0] == '[' {
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "batches are not taken: send one message a line"}
	}
	if _, err := jsonrpc.DecodeMessage(line); err != nil {
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "this is no JSON-RPC 2.0 message: " + err.Error()}
	}
	return nil
}

// refusal is the answer to a line that was not passed on, with its id if it can be known.
func refusal(line []byte, err error) []byte {
	var head struct {
		ID json.RawMessage `json:"id"`
	}
	_ = json.Unmarshal(line, &head) // null if it cannot be read
	if len(head.ID) == 0 {
		head.ID = json.RawMessage("null")
	}
	wire, ok := errors.AsType[*jsonrpc.Error](err)
	if !ok {
		wire = &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: fmt.Sprintf("the message is longer than %d MiB", maxMessage>>20)}
	}
	b, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": head.ID, "error": wire})
	if err != nil {
		b = []byte(`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"this line is not JSON"}}`)
	}
	return append(b, '\n')
}
