package docker

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"strings"

	"github.com/moby/moby/client"

	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/guest/agent"
	"github.com/recluse-dev/recluse/sandbox"
)

// The engine puts a header of eight bytes before each piece of output: whose it is, and how long.
const (
	headerSize = 8
	fromStdout = 1
	fromStderr = 2
	// maxWords is how much of a bridge's complaint is kept.
	maxWords = 1 << 10
)

// stream is the guest's byte stream: stdin and stdout of a bridge.
type stream struct {
	conn client.HijackedResponse
	left int    // of the piece that is being read
	head []byte // scratch

	onEnd func(closed bool) // hears that nothing more comes, and that it is closed

	words []byte // what the bridge complained about; only the reader's
}

// bridge starts a bridge in a sandbox.
func (b *Backend) bridge(ctx context.Context, r record, onEnd func(closed bool)) (*stream, error) {
	conn, err := b.exec(ctx, r.Container, r.bridge(), true, agent.BridgeArg, socketName(r.ID))
	if err != nil {
		return nil, err
	}
	return &stream{conn: conn, head: make([]byte, headerSize), onEnd: onEnd}, nil
}

// exec runs the guest's binary beside the guest. Its environment lacks the configuration, which holds the token: code inside may be able to
// read it.
func (b *Backend) exec(ctx context.Context, container string, user sandbox.User, stdin bool, args ...string) (client.HijackedResponse, error) {
	res, err := b.cli.ExecCreate(ctx, container, client.ExecCreateOptions{
		User: ids(user), AttachStdin: stdin, AttachStdout: true, AttachStderr: true, WorkingDir: "/",
		Env: []string{agent.ConfigEnv + "="}, Cmd: append([]string{guestDir + "/" + bundle.GuestName}, args...),
	})
	if err != nil {
		return client.HijackedResponse{}, err
	}
	at, err := b.cli.ExecAttach(ctx, res.ID, client.ExecAttachOptions{})
	return at.HijackedResponse, err
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.read(p)
	if err != nil {
		s.onEnd(false)
		if words := strings.TrimSpace(string(s.words)); words != "" {
			err = fmt.Errorf("%w: %s", err, strings.ToValidUTF8(words, "?"))
		}
	}
	return n, err
}

func (s *stream) read(p []byte) (int, error) {
	for s.left == 0 {
		if _, err := io.ReadFull(s.conn.Reader, s.head); err != nil {
			return 0, err
		}
		size := int(binary.BigEndian.Uint32(s.head[4:]))
		if s.head[0] == fromStdout {
			s.left = size
			continue
		}
		if err := s.listen(size); err != nil {
			return 0, err
		}
	}
	n, err := s.conn.Reader.Read(p[:min(len(p), s.left)])
	s.left -= n
	return n, err
}

// listen reads what is not the guest's: the bridge's complaints, or the engine's.
func (s *stream) listen(size int) error {
	text := make([]byte, min(size, maxWords))
	if _, err := io.ReadFull(s.conn.Reader, text); err != nil {
		return err
	}
	if _, err := io.CopyN(io.Discard, s.conn.Reader, int64(size-len(text))); err != nil {
		return err
	}
	s.words = append(s.words, text...)
	s.words = s.words[max(0, len(s.words)-maxWords):]
	if s.head[0] != fromStderr {
		return fmt.Errorf("the engine says: %s", strings.TrimSpace(string(text)))
	}
	return nil
}

// Write implements io.Writer.
func (s *stream) Write(p []byte) (int, error) { return s.conn.Conn.Write(p) }

// Close gives up the attachment: the bridge sees its stdin end.
func (s *stream) Close() error {
	s.conn.Close()
	s.onEnd(true)
	return nil
}
