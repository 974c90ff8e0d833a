package dockerengine

import (
	"archive/tar"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"
	"gvisor.dev/gvisor/pkg/cleanup"
)

// The engine puts a header of eight bytes before each chunk of output: its source and its length.
const (
	headerSize = 8
	fromStdout = 1
	fromStderr = 2
	// maxComplaint limits how much error output of a program or of the engine is kept.
	maxComplaint = 1 << 10
)

// Exec runs a program in a container and returns the connection to its stdin and output.
func (e *Engine) Exec(
	ctx context.Context,
	container string,
	o client.ExecCreateOptions,
) (client.HijackedResponse, error) {
	res, err := e.ExecCreate(ctx, container, o)
	if err != nil {
		return client.HijackedResponse{}, err
	}
	at, err := e.ExecAttach(ctx, res.ID, client.ExecAttachOptions{})
	return at.HijackedResponse, err
}

// Stream is stdin and stdout of a program in a container. Its stderr output becomes part of the error that ends the
// stream.
type Stream struct {
	conn client.HijackedResponse
	left int    // unread bytes of the current chunk
	head []byte // buffer for a header

	onEnd func(closed bool)

	complaint []byte // only used by the reader
}

// NewStream returns the stream of a program that Exec has started. It calls onEnd(false) when reading ends, and
// onEnd(true) when the stream is closed.
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

// readComplaint reads a chunk that is not stdout: error output of the program or of the engine.
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
		return fmt.Errorf("error from the Docker engine: %s", strings.TrimSpace(string(text)))
	}
	return nil
}

// Write implements io.Writer.
func (s *Stream) Write(p []byte) (int, error) { return s.conn.Conn.Write(p) }

// Close closes the stream, which ends the program's stdin. It always returns nil.
func (s *Stream) Close() error {
	s.conn.Close()
	s.onEnd(true)
	return nil
}

// ExecToFile runs a program in a container and returns its stdout as an unnamed file on this machine. It fails if
// there are more than limit bytes, or any output on stderr.
func (e *Engine) ExecToFile(
	ctx context.Context,
	container string,
	o client.ExecCreateOptions,
	limit int64,
) (*os.File, error) {
	conn, err := e.Exec(ctx, container, o)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, conn.Close)
	defer stop()
	f, err := os.CreateTemp("", "recluse-")
	if err != nil {
		return nil, err
	}
	// Remove the file now, so that a killed program does not leave it behind. Where open files cannot be removed, the
	// system has to clean up.
	_ = os.Remove(f.Name())
	cu := cleanup.Make(func() { _ = f.Close() })
	defer cu.Clean()
	var complaint strings.Builder
	if _, err := stdcopy.StdCopy(&limitedWriter{w: f, left: limit}, &complaint, conn.Reader); err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	if complaint.Len() > 0 {
		return nil, fmt.Errorf("error output: %.500s", complaint.String())
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	cu.Release()
	return f, nil
}

// limitedWriter fails after left bytes.
type limitedWriter struct {
	w    io.Writer
	left int64
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	if l.left -= int64(len(p)); l.left < 0 {
		return 0, errors.New("the output exceeds the size limit")
	}
	return l.w.Write(p)
}

// PutFile writes a file of the given size into a container, and creates its directory, which must be directly below
// the root.
func (e *Engine) PutFile(ctx context.Context, container, name string, content io.Reader, size int64) error {
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		t := tar.NewWriter(w)
		err := t.WriteHeader(
			&tar.Header{Typeflag: tar.TypeDir, Name: strings.TrimPrefix(path.Dir(name), "/") + "/", Mode: 0o755},
		)
		if err == nil {
			err = t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(name, "/"), Size: size, Mode: 0o644})
		}
		if err == nil {
			_, err = io.Copy(t, content)
		}
		err = errors.Join(err, t.Close())
		_ = w.CloseWithError(err) // never fails
		if errors.Is(err, io.ErrClosedPipe) {
			err = nil // the error of the engine explains better why it stopped reading
		}
		done <- err
	}()
	_, err := e.CopyToContainer(ctx, container, client.CopyToContainerOptions{DestinationPath: "/", Content: r})
	_ = r.Close() // unblocks the writer
	return errors.Join(err, <-done)
}
