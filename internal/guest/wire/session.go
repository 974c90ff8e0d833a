package wire

import (
	"context"
	"errors"
	"io"
	"os"
	"syscall"
)

// Session multiplexes streams over one attachment. It keeps streams whose call is over for the next calls, because
// opening a stream costs a frame.
type Session struct {
	mux *mux
}

// maxIdle bounds the streams that are kept for the next calls.
const maxIdle = 8

// NewSession returns a session over rw. host is true on exactly one of the two sides. The session reads nothing before
// Serve.
func NewSession(rw io.ReadWriter, closer io.Closer, host bool) *Session {
	return &Session{mux: newMux(rw, closer, host)}
}

// Open returns a stream for one call. The caller ends the call with Release or Close. Open waits while the session has
// its maximum of streams.
func (s *Session) Open() (*Stream, error) { return s.OpenContext(context.Background()) }

// OpenContext is Open with a ctx that bounds the wait.
func (s *Session) OpenContext(ctx context.Context) (*Stream, error) {
	c, kept, err := s.mux.open(ctx)
	switch {
	case err != nil:
		return nil, err
	case kept != nil:
		return &Stream{channel: kept}, nil
	}
	return newStream(c, s), nil
}

// ErrTooManyConnections means that the session has its maximum of network connections.
var ErrTooManyConnections = errors.New("too many network connections")

// OpenConnection returns a stream for one network connection. The caller sends a Request, and then uses Connection.
func (s *Session) OpenConnection() (*Stream, error) {
	c, err := s.mux.openNetwork()
	if err != nil {
		return nil, err
	}
	return newStream(c, nil), nil
}

// Connection is a stream on which bytes of a network connection follow the messages that opened it. One goroutine may
// read while another writes.
type Connection struct{ st *Stream }

// Connection returns the stream as a connection. No messages may be sent or received any more.
func (s *Stream) Connection() Connection { return Connection{s} }

// Read implements io.Reader. It returns syscall.ECONNRESET if the other side has cut the connection off.
func (c Connection) Read(p []byte) (int, error) { return c.st.r.Read(p) }

// Write implements io.Writer.
func (c Connection) Write(p []byte) (int, error) { return c.st.conn.Write(p) }

// WriteTo implements io.WriterTo: it copies until the end of the other side's data, without a buffer of its own.
func (c Connection) WriteTo(w io.Writer) (int64, error) {
	var total int64
	if n := c.st.r.Buffered(); n > 0 {
		b, _ := c.st.r.Peek(n) // cannot fail: they are buffered
		k, err := w.Write(b)
		total += int64(k)
		if err != nil {
			return total, err
		}
		_, _ = c.st.r.Discard(n)
	}
	for {
		n, err := c.st.conn.writeNext(w)
		total += int64(n)
		switch {
		case errors.Is(err, io.EOF):
			return total, nil
		case err != nil:
			return total, err
		}
	}
}

// CloseWrite ends this side's data. The other side can still send.
func (c Connection) CloseWrite() error { return c.st.conn.CloseWrite() }

// Close ends the connection. The other side can still read the data sent before.
func (c Connection) Close() error {
	c.st.Close()
	return nil
}

// Reset cuts the connection off: the other side reads an error.
func (c Connection) Reset() {
	if !c.st.released.Swap(true) {
		c.st.conn.Reset()
	}
}

// Serve reads until the session ends, and calls handle for each call of the other side, on its own goroutine. handle
// returns whether the stream can carry another call. Handlers may run longer than the session: see Wait.
func (s *Session) Serve(handle func(*Stream, *Request) bool) {
	s.mux.handle = func(c *conn) {
		if c.stream == nil {
			c.stream = newStream(c, nil)
		}
		st := c.stream
		for {
			req := &Request{}
			if st.Receive(req) != nil || !handle(st, req) {
				st.Close()
				return
			}
			if st.r.Buffered() == 0 && c.park() {
				return
			}
		}
	}
	go s.mux.read()
	<-s.mux.done
}

// Wait waits for the handlers of an ended session.
func (s *Session) Wait() { s.mux.calls.Wait() }

// Done returns a channel that is closed when the session has ended.
func (s *Session) Done() <-chan struct{} { return s.mux.done }

// Close ends the session and all its streams.
func (s *Session) Close() error {
	s.mux.fail(errMuxClosed)
	return nil
}

// IsClosed reports whether err means that a stream or session has ended.
func IsClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) ||
		errors.Is(err, ErrFenced) || errors.Is(err, os.ErrClosed) ||
		errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}
