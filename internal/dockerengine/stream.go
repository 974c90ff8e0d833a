package dockerengine

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"strings"

	"github.com/moby/moby/client"
)

// The engine puts a header of eight bytes before each piece of output: whose it is, and how long.
const (
	headerSize = 8
	fromStdout = 1
	fromStderr = 2
	// maxComplaint is how much is kept of what a program, or the engine, complains about.
	maxComplaint = 1 << 10
)

// Exec runs a program in a container and joins its input and output.
func (e *Engine) Exec(ctx context.Context, container string, o client.ExecCreateOptions) (client.HijackedResponse, error) {
	res, err := e.ExecCreate(ctx, container, o)
	if err != nil {
		return client.HijackedResponse{}, err
	}
	at, err := e.ExecAttach(ctx, res.ID, client.ExecAttachOptions{})
	return at.HijackedResponse, err
}

// Stream is stdin and stdout of a program in a container. What it writes to stderr becomes part of the error that
// ends the stream.
type Stream struct {
	conn client.HijackedResponse
	left int    // of the piece that is being read
	head []byte // scratch

	onEnd func(closed bool)

	complaint []byte // only the reader's
}

// NewStream returns the stream of a program that Exec has started. It calls onEnd with false when nothing more
// comes, and with true when it is closed.
func NewStream(conn client.HijackedResponse, onEnd func(closed bool)) *Stream {
	return &Stream{conn: conn, head: make([]byte, headerSize), onEnd: onEnd}
}

// Read implements io.Reader.
func (s *Stream) Read(p []byte) (int, error) {
	n, err := s.read(p)
	if err != nil {
		s.onEnd(false)
		if text := strings.TrimSpace(string(s.complaint)); text != "" {
			err = fmt.Errorf("%w: %s", err, strings.ToValidUTF8(text, "?"))
		}
	}
	return n, err
}

func (s *Stream) read(p []byte) (int, error) {
	for s.left == 0 {
		if _, err := io.ReadFull(s.conn.Reader, s.head); err != nil {
			return 0, err
		}
		size := int(binary.BigEndian.Uint32(s.head[4:]))
		if s.head[0] == fromStdout {
			s.left = size
			continue
		}
		if err := s.readComplaint(size); err != nil {
			return 0, err
		}
	}
	n, err := s.conn.Reader.Read(p[:min(len(p), s.left)])
	s.left -= n
	return n, err
}

// readComplaint reads what is not the program's output: its complaints, or the engine's.
func (s *Stream) readComplaint(size int) error {
	text := make([]byte, min(size, maxComplaint))
	if _, err := io.ReadFull(s.conn.Reader, text); err != nil {
		return err
	}
	if _, err := io.CopyN(io.Discard, s.conn.Reader, int64(size-len(text))); err != nil {
		return err
	}
	s.complaint = append(s.complaint, text...)
	s.complaint = s.complaint[max(0, len(s.complaint)-maxComplaint):]
	if s.head[0] != fromStderr {
		return fmt.Errorf("the engine says: %s", strings.TrimSpace(string(text)))
	}
	return nil
}

// Write implements io.Writer.
func (s *Stream) Write(p []byte) (int, error) { return s.conn.Conn.Write(p) }

// Close closes the stream: the program sees its stdin end. It never fails.
func (s *Stream) Close() error {
	s.conn.Close()
	s.onEnd(true)
	return nil
}
