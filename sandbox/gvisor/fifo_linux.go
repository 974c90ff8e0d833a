//go:build linux

package gvisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The stream to a guest is a pair of named pipes in the sandbox's directory: any process that may open them can
// attach to a guest that another process started, and they go through checkpoint and restore as descriptors 0 and 1.
//
// The sandbox holds each of them open for reading and writing, so the guest never sees an end of file when the host's side goes
// away. The host opens one end only, so it does see the end of the sandbox: end of file on the one, EPIPE on the other.
const (
	fifoIn  = "in"  // host to guest
	fifoOut = "out" // guest to host
	// fifoErr takes what engine and guest write to standard error. Nobody reads it unless something failed: the kernel's
	// 64 KiB are all that a hostile guest can make us keep.
	fifoErr = "err"
)

// fifoSize is the wanted capacity. With 1 MiB a pipe carried 1.1 GB/s; users have 64 of these before the kernel
// hands out less (pipe-user-pages-soft), which costs speed only.
const fifoSize = 1 << 20

// errGuestGone says that nobody holds the guest's ends of the pipes.
var errGuestGone = errors.New("no guest is attached to the sandbox's pipes")

// guestPipes are the guest's ends, to be handed to the engine as standard input, output and error.
type guestPipes struct{ in, out, err *os.File }

// makePipes creates the named pipes in dir and opens the guest's ends.
func makePipes(dir string) (*guestPipes, error) {
	var p guestPipes
	for _, end := range []struct {
		name string
		file **os.File
	}{{fifoIn, &p.in}, {fifoOut, &p.out}, {fifoErr, &p.err}} {
		path := filepath.Join(dir, end.name)
		if err := unix.Mkfifo(path, 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
			p.close()
			return nil, fmt.Errorf("named pipe %s: %w", path, err)
		}
		// Opened without os.OpenFile: that would make the open file description non-blocking, which the engine's
		// process shares.
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if err != nil {
			p.close()
			return nil, fmt.Errorf("named pipe %s: %w", path, err)
		}
		*end.file = os.NewFile(uintptr(fd), path)
		if end.name != fifoErr {
			growPipe(fd)
		}
	}
	return &p, nil
}

// growPipe asks for fifoSize and takes what it gets.
func growPipe(fd int) {
	for size := fifoSize; size > 64<<10; size /= 2 {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, size); err == nil {
			return
		}
	}
}

// close closes the guest's ends on our side. It must be called once the sandbox runs, else its end is not seen.
func (p *guestPipes) close() {
	for _, f := range []*os.File{p.in, p.out, p.err} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// drainErr returns what waits in the error pipe, at most stderrLimit bytes.
func (p *guestPipes) drainErr() string { return readPending(p.err.Name()) }

// readPending returns what waits in the named pipe at path without waiting for more.
func readPending(path string) string {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return ""
	}
	defer func() { _ = unix.Close(fd) }()
	buf := make([]byte, stderrLimit)
	n, _ := unix.Read(fd, buf)
	return strings.TrimSpace(string(buf[:max(n, 0)]))
}

// stream is the host's side of the pipes: a full-duplex byte stream. Read returns io.EOF when the sandbox has ended.
// Close unblocks Read and Write.
type stream struct{ in, out *os.File }

// openStream attaches to the pipes in dir. It returns errGuestGone when no sandbox holds them.
func openStream(dir string) (*stream, error) {
	// Writing end first: it alone fails when nobody reads, so a dead sandbox is known before anything is opened.
	in, err := openEnd(filepath.Join(dir, fifoIn), unix.O_WRONLY)
	if err != nil {
		return nil, err
	}
	out, err := openEnd(filepath.Join(dir, fifoOut), unix.O_RDONLY)
	if err != nil {
		_ = in.Close()
		return nil, err
	}
	return &stream{in: in, out: out}, nil
}

func openEnd(path string, mode int) (*os.File, error) {
	// Non-blocking, so that os.NewFile puts it into the poller: deadlines work and Close unblocks.
	fd, err := unix.Open(path, mode|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", errGuestGone, path)
	}
	if err != nil {
		return nil, fmt.Errorf("named pipe %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

func (s *stream) Read(p []byte) (int, error)  { return s.out.Read(p) }
func (s *stream) Write(p []byte) (int, error) { return s.in.Write(p) }

func (s *stream) Close() error { return errors.Join(s.in.Close(), s.out.Close()) }

func (s *stream) SetReadDeadline(t time.Time) error  { return s.out.SetReadDeadline(t) }
func (s *stream) SetWriteDeadline(t time.Time) error { return s.in.SetWriteDeadline(t) }
