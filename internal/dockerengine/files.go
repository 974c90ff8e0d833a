package dockerengine

import (
	"archive/tar"
	"context"
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

// ExecToFile runs a program in a container and returns its output as a file of this machine that has no name. More than
// limit bytes, and anything on stderr, are an error.
func (e *Engine) ExecToFile(ctx context.Context, container string, o client.ExecCreateOptions, limit int64) (*os.File, error) {
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
	// At once, so that no killed program leaves it. Where a file in use cannot be removed it is left to the system.
	_ = os.Remove(f.Name())
	cu := cleanup.Make(func() { _ = f.Close() })
	defer cu.Clean()
	var complaint strings.Builder
	if _, err := stdcopy.StdCopy(&limitedWriter{w: f, left: limit}, &complaint, conn.Reader); err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	if complaint.Len() > 0 {
		return nil, fmt.Errorf("it says: %.500s", complaint.String())
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	cu.Release()
	return f, nil
}

// limitedWriter refuses more than left bytes.
type limitedWriter struct {
	w    io.Writer
	left int64
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	if l.left -= int64(len(p)); l.left < 0 {
		return 0, errors.New("it sends more than it can have")
	}
	return l.w.Write(p)
}

// PutFile writes a file of a size into a container, and its directory below the root.
func (e *Engine) PutFile(ctx context.Context, container, name string, content io.Reader, size int64) error {
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		t := tar.NewWriter(w)
		err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: strings.TrimPrefix(path.Dir(name), "/") + "/", Mode: 0o755})
		if err == nil {
			err = t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(name, "/"), Size: size, Mode: 0o644})
		}
		if err == nil {
			_, err = io.Copy(t, content)
		}
		err = errors.Join(err, t.Close())
		_ = w.CloseWithError(err) // never fails
		if errors.Is(err, io.ErrClosedPipe) {
			err = nil // the engine explains better why it did not want the rest
		}
		done <- err
	}()
	_, err := e.CopyToContainer(ctx, container, client.CopyToContainerOptions{DestinationPath: "/", Content: r})
	_ = r.Close() // ends the writer
	return errors.Join(err, <-done)
}
