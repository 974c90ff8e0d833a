//go:build linux

// Package fifo implements the byte stream to a guest with two named pipes in the directory of the sandbox. Any process
// that may open them can attach to a guest that another process started.
//
// The guest holds both pipes open for reading and writing, so it sees no end of file when a host ends. A host opens
// only one end of each pipe, so it notices the end of the guest: end of file on one, EPIPE on the other. In gVisor the
// pipes survive checkpoint and restore as descriptors 0 and 1.
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

// pipeSize is the requested capacity. With it a pipe carried 1.1 GB/s. A user can have 64 pipes of this size; then the
// kernel grants less (pipe-user-pages-soft), which only costs speed.
const pipeSize = 1 << 20

// ErrNoGuest means that no guest has the pipes open.
var ErrNoGuest = errors.New("no guest has the pipes of the sandbox open")

// Ends are the guest's ends of the pipes, which become its standard input and output and, with MakeWithStderr, its
// standard error.
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
		for size := pipeSize; size > 64<<10; size /= 2 {
			if _, err := unix.FcntlInt(f.Fd(), unix.F_SETPIPE_SZ, size); err == nil {
				break
			}
		}
	}
	return &e, nil
}

// Close closes our copies. It must be called once the guest runs, otherwise hosts do not notice the end of the guest.
func (e *Ends) Close() {
	for _, f := range []*os.File{e.In, e.Out, e.Err} {
		if f != nil {
			_ = f.Close() // no data was written through it
		}
	}
}

// Stream is the host's side of the pipes. Close unblocks Read and Write.
type Stream struct{ in, out *os.File }

// Open attaches to the pipes in dir. The error is ErrNoGuest if no guest has them open.
func Open(dir string) (*Stream, error) {
	// Open the writing end first: only that open fails without a reader, so a dead guest is detected before anything is
	// open.
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

// HasGuest reports whether a guest, or the program that is starting it, has the pipes in dir open.
func HasGuest(dir string) bool {
	f, err := open(filepath.Join(dir, in), unix.O_WRONLY)
	if err != nil {
		return false
	}
	_ = f.Close() // nothing was written
	return true
}

func open(path string, mode int) (*os.File, error) {
	// Non-blocking, so that os.NewFile uses the poller: then deadlines work and Close unblocks.
	fd, err := unix.Open(path, mode|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNoGuest, path)
	}
	if err != nil {
		return nil, fmt.Errorf("named pipe %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Read implements io.Reader. It returns io.EOF when the guest has ended.
func (s *Stream) Read(p []byte) (int, error) { return s.out.Read(p) }

// Write implements io.Writer.
func (s *Stream) Write(p []byte) (int, error) { return s.in.Write(p) }

// Close implements io.Closer.
func (s *Stream) Close() error { return errors.Join(s.in.Close(), s.out.Close()) }

// SetReadDeadline sets the deadline of Read.
func (s *Stream) SetReadDeadline(t time.Time) error { return s.out.SetReadDeadline(t) }

// SetWriteDeadline sets the deadline of Write.
func (s *Stream) SetWriteDeadline(t time.Time) error { return s.in.SetWriteDeadline(t) }
