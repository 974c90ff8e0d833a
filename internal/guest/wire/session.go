package wire

import (
	"context"
	"errors"
	"io"
	"os"
	"syscall"
)

// Session multiplexes streams over one attachment. It keeps streams whose call
// is over, because opening one costs a frame that a warm call can do without.
type Session struct {
	mux *mux
}

// maxIdle bounds the streams kept for the next calls.
const maxIdle = 8

// NewSession makes the multiplexer. Exactly one side is the host. Nothing is read before Serve.
func NewSession(rw io.ReadWriter, closer io.Closer, host bool) *Session {
	return &Session{mux: newMux(rw, closer, host)}
}

// Open gives a stream for one call; end the call with Release or Close. While there are as many as a session bears, it waits.
func (s *Session) Open() (*Stream, error) { return s.OpenContext(context.Background()) }

// OpenContext is Open that does not wait longer than ctx.
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

// Serve reads until the session ends, and has the calls of the other side handled, each on a goroutine of its own. A handler reports whether
// the stream can carry another call. Handlers may outlast the session: see Wait.
func (s *Session) Serve(handle func(*Stream, *Request) bool) {
	s.mux.handle = func(c *conn) {
		if c.user == nil {
			c.user = newStream(c, nil)
		}
		st := c.user
		for {
			req := &Request{}
			if st.Receive(req) != nil || !handle(st, req) {
				st.Close()
				return
			}
			if st.r.Buffered() == 0 && c.rest() {
				return
			}
		}
	}
	go s.mux.read()
	<-s.mux.done
}

// Wait waits for the handlers of a session that has ended.
func (s *Session) Wait() { s.mux.calls.Wait() }

// Done is closed when the session has ended.
func (s *Session) Done() <-chan struct{} { return s.mux.done }

// Close ends the session and every stream of it.
func (s *Session) Close() error {
	s.mux.fail(errMuxClosed)
	return nil
}

// IsClosed reports whether err is about a stream or session that has ended.
func IsClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) ||
		errors.Is(err, ErrFenced) || errors.Is(err, os.ErrClosed) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}
