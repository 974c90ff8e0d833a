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
	endTimeout = 15 * time.Second
)

// StdioOptions configures an MCP server over standard input and output.
type StdioOptions struct {
	Options
	Session string // name of the session of the connection
	Keep    bool   // keep the session after the end of the connection
}

// Serve serves MCP over in and out until in or ctx ends. The first call that needs the session creates it. A session
// that was created here ends with the connection, unless Keep is set.
func Serve(ctx context.Context, c *client.Client, in io.Reader, out io.Writer, o StdioOptions) (err error) {
	serving, leave := context.WithCancel(ctx)
	defer leave()
	var mu sync.Mutex
	var made []ownedItem // guarded by mu
	l := &link{client: c, ownSession: o.Session, clientGone: serving, onMade: func(_ *sdk.ServerSession, b ownedItem) {
		mu.Lock()
		defer mu.Unlock()
		made = append(made, b)
	}}
	srv := newServer(o.Options, func(*sdk.RequestExtra, *sdk.ServerSession) (*link, error) { return l, nil })
	defer func() {
		srv.subscriptions.close()
		if o.Keep {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
		defer cancel()
		mu.Lock()
		defer mu.Unlock()
		for _, b := range made {
			err = errors.Join(err, b.end(ctx, c))
		}
	}()
	t := &stdio{in: in, out: out, leave: leave}
	err = srv.server.Run(ctx, t)
	if errors.Is(err, io.EOF) || ctx.Err() != nil || t.outputClosed.Load() {
		err = nil
	}
	if err != nil {
		err = &v1.Error{Code: v1.CodeProtocol, Op: "serve MCP", Message: "the connection failed", Err: err}
	}
	return err
}

// stdio is the SDK's line transport behind a filter that passes only valid messages on. Without the filter, the SDK
// would close the connection at the first invalid line, and a client with one bad message would lose its session.
type stdio struct {
	in           io.Reader
	out          io.Writer
	leave        func() // called when in ends or out is closed
	outputClosed atomic.Bool

	mu        sync.Mutex      // guards what follows, and writing to out
	cancelled map[string]bool // ids of requests that the client has cancelled and that must not be answered
}

// Connect implements sdk.Transport.
func (s *stdio) Connect(ctx context.Context) (sdk.Connection, error) {
	r, w := io.Pipe()
	go func() {
		err := s.filter(w)
		s.leave() // cancels the calls of a client that is gone
		_ = w.CloseWithError(err)
	}()
	return (&sdk.IOTransport{Reader: r, Writer: s, MaxLineLength: maxMessage + 1}).Connect(ctx)
}

// Write implements io.Writer. Each call writes one whole message.
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
		s.outputClosed.Store(true)
		s.leave()
	}
	return n, err
}

// maxCancelled is the maximum number of cancelled requests that are remembered. A request whose answer had been written
// before the cancellation is never removed otherwise.
const maxCancelled = 1000

// noteCancelled remembers the request that a line cancels, if it cancels one.
func (s *stdio) noteCancelled(line []byte) {
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

// Close implements io.Closer. It does nothing, because in and out belong to the caller of Serve.
func (s *stdio) Close() error { return nil }

// filter writes valid lines to w and answers invalid lines with an error. It returns the error with which the input
// ended.
func (s *stdio) filter(w io.Writer) error {
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
			err = checkMessage(line)
		}
		if err != nil {
			if _, err := s.Write(errorResponse(line, err)); err != nil {
				return err
			}
			continue
		}
		s.noteCancelled(line)
		if _, err := w.Write(append(line, '\n')); err != nil {
			return err
		}
	}
}

// readLine returns a line without its end. It skips a line that is too long and returns bufio.ErrTooLong. A last line
// without an end is an incomplete message and is dropped.
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

// checkMessage returns an error for a line that is not a single JSON-RPC message.
func checkMessage(line []byte) error {
	if !json.Valid(line) {
		return &jsonrpc.Error{Code: jsonrpc.CodeParseError, Message: "this line is not JSON"}
	}
	if line[0] == '[' {
		return &jsonrpc.Error{
			Code:    jsonrpc.CodeInvalidRequest,
			Message: "batches are not supported: send one message per line",
		}
	}
	if _, err := jsonrpc.DecodeMessage(line); err != nil {
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "invalid JSON-RPC 2.0 message: " + err.Error()}
	}
	return nil
}

// errorResponse returns the answer to an invalid line. It contains the id of the line, or null if it has none.
func errorResponse(line []byte, err error) []byte {
	var head struct {
		ID json.RawMessage `json:"id"`
	}
	_ = json.Unmarshal(line, &head) // the id stays empty on an error
	if len(head.ID) == 0 {
		head.ID = json.RawMessage("null")
	}
	wire, ok := errors.AsType[*jsonrpc.Error](err)
	if !ok {
		wire = &jsonrpc.Error{
			Code:    jsonrpc.CodeInvalidRequest,
			Message: fmt.Sprintf("the message is longer than %d MiB", maxMessage>>20),
		}
	}
	b, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": head.ID, "error": wire})
	if err != nil {
		b = []byte(`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"this line is not JSON"}}`)
	}
	return append(b, '\n')
}
