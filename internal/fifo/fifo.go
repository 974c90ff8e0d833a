//go:build linux

// Package fifo makes the byte stream to a guest out of two named pipes in the sandbox's
// directory. Any process that may open them can attach to a guest that another one started.
//
// The guest holds both pipes open for reading and writing, so it never sees an end when a
// host goes away. A host opens one end of each only, so it does see the end of the guest: end of
// file on the one, EPIPE on the other. In gVisor they go through checkpoint and restore as descriptors 0 and 1.
package fifo

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	in  = "in"  // host to guest
	out = "out" // guest to host
)

// wanted is the capacity asked for. With it a pipe carried 1.1 GB/s. A user has 64 pipes of it before the kernel hands out less
// (pipe-user-pages-soft), which costs speed only.
const wanted = 1 << 20

// ErrNobody says that no guest holds the pipes.
var ErrNobody = errors.New("no guest holds the sandbox's pipes")

// Ends are the guest's ends of the pipes, to become its standard input and output, and with MakeAll its standard error.
type Ends struct{ In, Out, Err *os.File }

// Make creates the pipes in dir and opens the guest's ends.
func Make(dir string) (*Ends, error) {
	var e Ends
	for _, end := range []struct {
		name string
		file **os.File
	}{{in, &e.In}, {out, &e.Out}} {
		f, err := makeEnd(filepath.Join(dir, end.name))
		if err != nil {
			e.Close()
			return nil, err
		}
		*end.file = f
		for size := wanted; size > 64<<10; size /= 2 {
			if _, err := unix.FcntlInt(f.Fd(), unix.F_SETPIPE_SZ, size); err == nil {
				break
			}
		}
	}
	return &e, nil
}

// Close closes our copies. It must be called once the guest runs, else its end is not seen.
func (e *Ends) Close() {
	for _, f := range []*os.File{e.In, e.Out, e.Err} {
		if f != nil {
			_ = f.Close() // nothing was written through it
		}
	}
}

// Stream is the host's side. Close unblocks Read and Write.
type Stream struct{ in, out *os.File }

// Open attaches to the pipes in dir. The error is ErrNobody when no guest holds them.
func Open(dir string) (*Stream, error) {
	// The writing end first: it alone fails when nobody reads, so a dead guest is known before anything is open.
	w, err := open(filepath.Join(dir, in), unix.O_WRONLY)
	if err != nil {
		return nil, err
	}
	r, err := open(filepath.Join(dir, out), unix.O_RDONLY)
	if err != nil {
		_ = w.Close()
		return nil, err
	}
	return &Stream{in: w, out: r}, nil
}

func open(path string, mode int) (*os.File, error) {
	// Non-blocking, so that os.NewFile puts it into the poller: deadlines work and Close unblocks.
	fd, err := unix.Open(path, mode|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNobody, path)
	}
	if err != nil {
		return nil, fmt.Errorf("named pipe %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Read gives io.EOF when the guest has ended.
func (s *Stream) Read(p []byte) (int, error) { return s.out.Read(p) }

// Write implements io.Writer.
func (s *Stream) Write(p []byte) (int, error) { return s.in.Write(p) }

// Close implements io.Closer.
func (s *Stream) Close() error { return errors.Join(s.in.Close(), s.out.Close()) }

// SetReadDeadline bounds Read.
func (s *Stream) SetReadDeadline(t time.Time) error { return s.out.SetReadDeadline(t) }

// SetWriteDeadline bounds Write.
func (s *Stream) SetWriteDeadline(t time.Time) error { return s.in.SetWriteDeadline(t) }
