package wire

import (
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
)

// Session multiplexes streams over one attachment. It keeps streams whose call
// is over, because opening one costs a round trip that a warm call can do without.
type Session struct {
	mux *yamux.Session

	mu   sync.Mutex
	idle []*Stream // guarded by mu
}

// maxIdle bounds the streams kept for the next calls.
const maxIdle = 8

// NewSession starts the multiplexer. Exactly one side is the host.
func NewSession(rw io.ReadWriter, closer io.Closer, host bool) (*Session, error) {
	cfg := yamux.DefaultConfig()
	cfg.LogOutput = io.Discard
	// A sandbox may stand still for as long as a snapshot or a pause takes, so silence
	// proves nothing. That a machine has gone is told by its backend.
	cfg.EnableKeepAlive = false
	cfg.ConnectionWriteTimeout = time.Hour
	cfg.StreamOpenTimeout = 0
	cfg.StreamCloseTimeout = time.Minute
	cfg.MaxStreamWindowSize = 4 << 20
	cfg.AcceptBacklog = 512
	conn := &joined{rw: rw, closer: closer}
	side := yamux.Server
	if host {
		side = yamux.Client
	}
	m, err := side(conn, cfg)
	if err != nil {
		return nil, err
	}
	return &Session{mux: m}, nil
}

// Open gives a stream for one call; end the call with Release or Close.
func (s *Session) Open() (*Stream, error) {
	s.mu.Lock()
	if n := len(s.idle); n > 0 {
		st := s.idle[n-1]
		s.idle = s.idle[:n-1]
		s.mu.Unlock()
		return st, nil
	}
	s.mu.Unlock()
	c, err := s.mux.OpenStream()
	if err != nil {
		return nil, err
	}
	return newStream(c, s), nil
}

// Accept waits for a stream that the other side opens.
func (s *Session) Accept() (*Stream, error) {
	c, err := s.mux.AcceptStream()
	if err != nil {
		return nil, err
	}
	return newStream(c, nil), nil
}

// Done is closed when the session has ended.
func (s *Session) Done() <-chan struct{} { return s.mux.CloseChan() }

// Close ends the session and every stream of it.
func (s *Session) Close() error { return s.mux.Close() }

// IsClosed reports whether err is about a stream or session that has ended.
func IsClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) ||
		errors.Is(err, yamux.ErrSessionShutdown) || errors.Is(err, yamux.ErrStreamClosed) ||
		errors.Is(err, yamux.ErrConnectionReset) || errors.Is(err, yamux.ErrRemoteGoAway) || errors.Is(err, ErrFenced)
}

// joined writes a yamux header together with the body that follows it. yamux writes
// the two apart, and on a pipe into a sandbox each write costs a wake-up on the
// other side.
type joined struct {
	rw     io.ReadWriter
	closer io.Closer
	buf    []byte // a header that waits for its body; used by yamux's send loop alone
}

const (
	muxHeader   = 12
	muxTypeData = 0
	// Above this a body is written by itself: the copy would cost more than the call.
	joinLimit = 32 << 10
)

func (j *joined) Read(p []byte) (int, error) { return j.rw.Read(p) }

func (j *joined) Write(p []byte) (int, error) {
	if len(j.buf) == 0 && len(p) == muxHeader && p[1] == muxTypeData && binary.BigEndian.Uint32(p[8:]) > 0 {
		j.buf = append(j.buf, p...)
		return len(p), nil
	}
	if len(j.buf) == 0 {
		return j.rw.Write(p)
	}
	defer func() { j.buf = j.buf[:0] }()
	if len(p) > joinLimit {
		if _, err := j.rw.Write(j.buf); err != nil {
			return 0, err
		}
		return j.rw.Write(p)
	}
	head := len(j.buf)
	n, err := j.rw.Write(append(j.buf, p...))
	return max(0, n-head), err
}

func (j *joined) Close() error { return j.closer.Close() }
