// Package host is the host's end of the protocol with a guest: it attaches, makes calls, and answers the calls of code
// in the sandbox.
package host

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/recluse-dev/recluse/internal/guest/wire"
)

// Error is an error that the guest has reported, with its stable code.
type Error struct {
	Code    string
	Message string
	Path    string
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// ErrDetached means that the attachment ended before the call.
var ErrDetached = errors.New("the connection to the guest has ended")

// Call is a call of a host function by code in the sandbox.
type Call struct {
	Op      string
	Context string
	Name    string
	Payload []byte
}

// Handler answers calls from the sandbox; its error is raised there. ctx ends when the calling cell ends.
type Handler func(ctx context.Context, c Call) ([]byte, error)

// Network answers the network requests of a sandbox.
type Network interface {
	// Lookup reports whether a name may be used.
	Lookup(ctx context.Context, name string, o *wire.Owner) wire.Answer
	// Connect serves a connection until it ends. It calls open before it sends anything to the client; with an error
	// instead, the client's connection is reset.
	Connect(ctx context.Context, c *wire.Connect, client wire.Connection, open func() error) error
}

// Limits of the calls that code in the sandbox makes.
const (
	maxCallPayload  = 256 << 20 // payload of one call
	maxCallPayloads = 512 << 20 // payloads of all unanswered calls
	maxHandlers     = 256       // concurrent handlers; other calls wait
)

// Limits of what the guest says about a connection, which is kept for verdicts and logs.
const (
	maxHostName = 1 << 10
	maxOwnerOp  = 128
	maxCommand  = 1 << 10
)

// bounded returns what is known about the owner of a connection. An ID that is too long is none of ours.
func bounded(o *wire.Owner) *wire.Owner {
	if len(o.GetOp()) > maxOwnerOp {
		return nil
	}
	if len(o.GetCommand()) > maxCommand {
		o.Command = strings.ToValidUTF8(o.Command[:maxCommand], "")
	}
	return o
}

// Client is one attachment to a guest.
type Client struct {
	stream     io.ReadWriteCloser
	session    *wire.Session
	handler    func() Handler
	network    Network
	ctx        context.Context // ends with the attachment
	cancel     context.CancelFunc
	calls      sync.WaitGroup
	slots      chan struct{} // one entry for each running handler
	held       atomic.Int64  // bytes of unanswered calls
	maxPayload int64         // maxCallPayload, or less in a test
}

// Options are the options of Attach.
type Options struct {
	Token    []byte
	Identity *wire.Identity
	Handler  func() Handler // returns the current handler; may return nil
	Network  Network        // nil: the sandbox has no network
}

// Attach attaches to the guest and takes ownership of stream. If ctx ends first, the stream is closed.
func Attach(ctx context.Context, stream io.ReadWriteCloser, opts Options) (*Client, error) {
	nonce := make([]byte, 16)
	if _, err := rand.Read(nonce); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = stream.Close() })
	hello := &wire.Hello{Protocol: wire.Protocol, Nonce: nonce, Identity: opts.Identity}
	w, rw, err := wire.Attach(stream, opts.Token, hello)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = stream.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
	if w.Protocol < wire.OldestProtocol {
		_ = stream.Close()
		return nil, fmt.Errorf("the guest speaks protocol %d, but this host requires %d to %d",
			w.Protocol, wire.OldestProtocol, wire.Protocol)
	}
	s := wire.NewSession(rw, stream, true)
	c := &Client{
		stream:     stream,
		session:    s,
		handler:    opts.Handler,
		network:    opts.Network,
		slots:      make(chan struct{}, maxHandlers),
		maxPayload: maxCallPayload,
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.calls.Go(func() {
		s.Serve(c.answer)
		c.cancel()
	})
	return c, nil
}

// Done returns a channel that is closed when the attachment has ended.
func (c *Client) Done() <-chan struct{} { return c.session.Done() }

// Close ends the attachment. Detached operations in the sandbox continue.
func (c *Client) Close() {
	_ = c.session.Close() // it is closed even if it returns an error
	c.cancel()
	_ = c.stream.Close()
	c.session.Wait()
	c.calls.Wait()
}

// Open starts a call. If ctx ends during Open, the call is abandoned, though the guest may receive it. After Open,
// closing the stream is up to the caller.
func (c *Client) Open(ctx context.Context, req *wire.Request) (*wire.Stream, error) {
	st, stop, err := c.begin(ctx, req)
	if err != nil {
		return nil, err
	}
	if !stop() {
		return nil, ctx.Err()
	}
	return st, nil
}

// begin starts a call. Until stop is called, the end of ctx closes it. This includes the sending: the guest may not be
// reading, and the link may be full.
func (c *Client) begin(ctx context.Context, req *wire.Request) (st *wire.Stream, stop func() bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	st, err = c.session.OpenContext(ctx)
	if err != nil {
		return nil, nil, detached(err)
	}
	stop = context.AfterFunc(ctx, st.Close)
	if err := st.Send(req); err != nil {
		if !stop() {
			return nil, nil, ctx.Err()
		}
		st.Close()
		return nil, nil, detached(err)
	}
	return st, stop, nil
}

// Receive reads the next frame of a call; an error frame is returned as *Error. After an error, the stream is closed or
// released.
func Receive(st *wire.Stream) (*wire.Frame, error) {
	f := &wire.Frame{}
	if err := st.Receive(f); err != nil {
		st.Close()
		return nil, detached(err)
	}
	if e := f.GetError(); e != nil {
		if f.Last {
			st.Release()
		} else {
			st.Close()
		}
		return nil, &Error{Code: e.Code, Message: e.Message, Path: string(e.Path)}
	}
	return f, nil
}

// Call makes a call that has one answer. If ctx ends, the call is abandoned.
func (c *Client) Call(ctx context.Context, req *wire.Request) (*wire.Frame, error) {
	st, stop, err := c.begin(ctx, req)
	if err != nil {
		return nil, err
	}
	f, err := Receive(st)
	if !stop() {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	st.Release()
	return f, nil
}

// Await makes a call that has one answer and that the guest ends early if the stream is closed. The stream serves no
// other call, because the guest reads it to its end.
func (c *Client) Await(ctx context.Context, req *wire.Request) (*wire.Frame, error) {
	st, stop, err := c.begin(ctx, req)
	if err != nil {
		return nil, err
	}
	st.Dedicate()
	f, err := Receive(st)
	if !stop() {
		return nil, ctx.Err()
	}
	st.Close()
	return f, err
}

// Ping makes a round trip to the guest.
func (c *Client) Ping(ctx context.Context) error {
	_, err := c.Call(ctx, &wire.Request{Call: &wire.Request_Ping{Ping: &wire.Ping{}}})
	return err
}

// Quiesce prepares the guest for a snapshot and returns the files that processes inside have open or mapped.
func (c *Client) Quiesce(ctx context.Context) ([]string, error) {
	f, err := c.Call(ctx, &wire.Request{Call: &wire.Request_Quiesce{Quiesce: &wire.Quiesce{}}})
	if err != nil {
		return nil, err
	}
	var held []string
	for _, h := range f.GetHeld().GetPaths() {
		held = append(held, string(h))
	}
	return held, nil
}

// Warm starts the processes that the first cell and the first command would otherwise have to start.
func (c *Client) Warm(ctx context.Context, interpreter, command bool) error {
	warm := &wire.Warm{Interpreter: interpreter, Command: command}
	_, err := c.Call(ctx, &wire.Request{Call: &wire.Request_Warm{Warm: warm}})
	return err
}

func detached(err error) error {
	if wire.IsClosed(err) {
		return fmt.Errorf("%w: %w", ErrDetached, err)
	}
	return err
}

// connect serves one network connection.
func (c *Client) connect(st *wire.Stream, req *wire.Connect) {
	opened := false
	err := c.network.Connect(c.ctx, req, st.Connection(), func() error {
		opened = true
		return st.Send(&wire.Frame{Body: &wire.Frame_Connected{Connected: &wire.Connected{}}})
	})
	switch {
	case err == nil:
	case opened:
		st.Connection().Reset()
	default:
		code := "refused"
		if e, ok := errors.AsType[*Error](err); ok {
			code = e.Code
		}
		// If the stream is broken, the guest sees that.
		_ = st.Send(&wire.Frame{Body: &wire.Frame_Error{Error: &wire.Error{Code: code, Message: err.Error()}}})
	}
}

// DialInside opens a connection to a port of 127.0.0.1 or ::1 in the sandbox. An error that the guest reports is an
// *Error with the code port_closed or unreachable.
func (c *Client) DialInside(ctx context.Context, port uint16) (wire.Connection, error) {
	st, err := c.session.OpenConnection()
	if err != nil {
		return wire.Connection{}, detached(err)
	}
	stop := context.AfterFunc(ctx, st.Close)
	f := &wire.Frame{}
	err = st.Send(&wire.Request{Call: &wire.Request_Dial{Dial: &wire.Dial{Port: uint32(port)}}})
	if err == nil {
		err = st.Receive(f)
	}
	switch {
	case !stop():
		return wire.Connection{}, ctx.Err()
	case err != nil:
		st.Close()
		return wire.Connection{}, detached(err)
	case f.GetConnected() == nil:
		st.Close()
		return wire.Connection{}, &Error{Code: f.GetError().GetCode(), Message: f.GetError().GetMessage()}
	}
	return st.Connection(), nil
}

// answer answers a call of the sandbox. It reports whether the stream can carry another call.
func (c *Client) answer(st *wire.Stream, req *wire.Request) bool {
	refuse := func(code, text string) bool {
		f := &wire.Frame{Body: &wire.Frame_Error{Error: &wire.Error{Code: code, Message: text}}, Last: true}
		return st.Send(f) == nil
	}
	switch call := req.Call.(type) {
	case *wire.Request_Lookup:
		found := &wire.Found{Answer: wire.Answer_ANSWER_DENIED}
		if name := call.Lookup.GetName(); c.network != nil && len(name) <= maxHostName {
			found.Answer = c.network.Lookup(c.ctx, name, bounded(call.Lookup.GetOwner()))
		}
		return st.Send(&wire.Frame{Body: &wire.Frame_Found{Found: found}, Last: true}) == nil
	case *wire.Request_Connect:
		if c.network == nil {
			return refuse("denied", "there is no network") && false
		}
		if len(call.Connect.GetName()) > maxHostName {
			return refuse("denied", "the name is too long") && false
		}
		call.Connect.Owner = bounded(call.Connect.Owner)
		c.connect(st, call.Connect)
		return false
	}
	hc := req.GetHostCall()
	if hc == nil {
		return refuse("not_supported", "unknown call")
	}
	var h Handler
	if c.handler != nil {
		h = c.handler()
	}
	call := Call{Op: hc.Op, Context: hc.Context, Name: hc.Name}
	var held int64
	release := func() {
		c.held.Add(-held)
		held, call.Payload = 0, nil
	}
	defer release()
	// The sandbox reads the refusal only after it has sent everything. Until then the data is read and dropped.
	drop := func(code, text string) bool {
		release()
		if !refuse(code, text) {
			return false
		}
		f := &wire.Frame{}
		for st.Receive(f) == nil && !f.GetEof() {
			f.Reset()
		}
		return false
	}
	if h == nil {
		return drop("host_call_undefined", "the host has no function "+hc.Name)
	}
	for {
		f := &wire.Frame{}
		if st.Receive(f) != nil {
			return false
		}
		if f.GetEof() {
			break
		}
		n := int64(len(f.GetData()))
		held += n
		if c.held.Add(n) > maxCallPayloads {
			return drop("too_large", "the payloads of all calls exceed the host's limit of 512 MiB")
		}
		if held > c.maxPayload {
			return drop("too_large", "the payload exceeds the host's limit of 256 MiB")
		}
		call.Payload = append(call.Payload, f.GetData()...)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c.calls.Go(func() {
		defer cancel() // the guest closes the stream when the cell has ended
		_ = st.Receive(&wire.Frame{})
	})
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	reply, err := h(ctx, call)
	<-c.slots
	release()
	if err != nil {
		code := "failed"
		if e, ok := errors.AsType[*Error](err); ok {
			code = e.Code
		}
		return refuse(code, err.Error()) && false
	}
	for len(reply) > 0 {
		n := min(len(reply), wire.Chunk)
		if st.Send(&wire.Frame{Body: &wire.Frame_Data{Data: reply[:n]}}) != nil {
			return false
		}
		reply = reply[n:]
	}
	_ = st.Send(&wire.Frame{Body: &wire.Frame_Eof{Eof: true}, Last: true})
	return false // the goroutine above reads until the end of the stream
}
