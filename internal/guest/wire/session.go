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
