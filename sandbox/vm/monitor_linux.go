package vm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/recluse-dev/recluse/internal/guest/launch"
)

// monitor is a program that runs a virtual machine. All methods may be called by another program than the one that
// started the machine: what they need is in its directory.
type monitor interface {
	name() string
	// program returns the path of the monitor.
	program() string
	// version returns the version of the installed program.
	version(ctx context.Context) (string, error)
	// home returns the working directory of the monitor, as the host sees it.
	home(m *hardware) string
	// start starts a machine, or continues one from the state in m.from. It returns when the guest has opened its end of
	// the stream. began is called with the process at once, so that it is known whatever happens next.
	start(ctx context.Context, m *hardware, began func(pid int) error) error
	// dial connects to the stream.
	dial(ctx context.Context, m *hardware) (net.Conn, error)
	// pause stops the processors, resume continues them. Both succeed if there is nothing to do.
	pause(ctx context.Context, m *hardware) error
	resume(ctx context.Context, m *hardware) error
	// save writes the state of a paused machine to files in the directory to.
	save(ctx context.Context, m *hardware, to string) error
}

// hardware describes a machine to a monitor.
type hardware struct {
	id        string
	dir       string // private directory of the monitor, with its sockets and configFile
	log       string // pipe for the messages of the monitor, outside dir
	kernel    string // a bzImage; its uncompressed form is beside it
	initramfs string
	root      string
	disk      string // the writable disk in dir; empty: none
	memory    int64  // bytes
	cpus      int
	kvm       bool
	micro     bool   // a microvm of QEMU
	uid       int    // user of the monitor; 0: that of this program
	from      string // directory with the saved state of a machine
}

// files returns the read-only files of a machine, by the names that they have in a jail.
func (m *hardware) files() map[string]string {
	return map[string]string{"kernel": m.kernel, "initramfs": m.initramfs, "root": m.root}
}

// kernelArgs returns the command line of the kernel. A kernel that cannot continue ends the machine. It keeps no
// statistics that nobody reads. An emulated processor does not speculate, and has one clock.
func (m *hardware) kernelArgs() string {
	args := "console=ttyS0 quiet loglevel=3 panic=-1 net.ifnames=0 psi=0 cgroup_disable=memory nowatchdog "
	if !m.kvm {
		args += "mitigations=off tsc=reliable "
	}
	return args + "rdinit=/init -- boot"
}

// configFile is the disk with the guest's configuration, in the directory of the monitor.
const configFile = "config"

// streamSocket is the socket of the stream, in the home of the monitor.
const streamSocket = "stream"

const (
	// bootPoll is how often a booting machine is asked whether its guest has opened its port.
	bootPoll = 20 * time.Millisecond
	// consoleSize bounds what is kept of the console. The guest can write to it without end.
	consoleSize = 64 << 10
)

// errMonitorEnded means that a monitor ended while its machine started.
var errMonitorEnded = errors.New("the monitor has ended")

// openIn opens a file of a monitor, which may have replaced it by a link to any file of the host.
func openIn(dir, name string, flags int) (int, error) {
	d, err := os.Open(dir)
	if err != nil {
		return -1, err
	}
	defer d.Close()
	how := &unix.OpenHow{
		Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	}
	fd, err := unix.Openat2(int(d.Fd()), name, how)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: filepath.Join(dir, name), Err: err}
	}
	return fd, nil
}

// dialIn connects to a socket in a directory of a monitor. The path of a socket may have only about 100 bytes, so it
// leads through a descriptor.
func dialIn(ctx context.Context, dir, name string) (net.Conn, error) {
	fd, err := openIn(dir, name, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return (&net.Dialer{}).DialContext(ctx, "unix", "/proc/self/fd/"+strconv.Itoa(fd))
}

// dialWait is how long a monitor may take to connect to the guest.
const dialWait = 5 * time.Second

// dialVsock connects to the guest through the socket of a monitor's vsock: one line asks for a port, one line answers.
func dialVsock(ctx context.Context, dir string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialWait)
	defer cancel()
	c, err := dialIn(ctx, dir, streamSocket)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })
	answer := ""
	if _, err = fmt.Fprintf(c, "CONNECT %d\n", launch.VsockPort); err == nil {
		answer, err = readLine(c)
	}
	switch {
	case !stop(): // the deadline may be set at any moment
		err = errors.Join(ctx.Err(), err)
	case errors.Is(err, io.EOF):
		err = errors.New("the guest does not listen")
	case err == nil && !strings.HasPrefix(answer, "OK "):
		err = fmt.Errorf("the monitor answers %q", answer)
	}
	if err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("connect to the guest: %w", err)
	}
	return c, nil
}

// readLine reads a short line, and nothing after it.
func readLine(r io.Reader) (string, error) {
	const longest = 64
	var line []byte
	for b := make([]byte, 1); len(line) < longest; line = append(line, b[0]) {
		if _, err := io.ReadFull(r, b); err != nil {
			return "", err
		}
		if b[0] == '\n' {
			return string(line), nil
		}
	}
	return "", fmt.Errorf("a line begins with %q and does not end", line)
}

// launched is a monitor that this program has started.
type launched struct {
	ended <-chan struct{}
	log   *monitorLog
}

// launchMonitor starts the program of a monitor in its jail. The log receives its stderr.
func launchMonitor(
	cmd *exec.Cmd, m *hardware, start func(*exec.Cmd) error, began func(pid int) error,
) (*launched, error) {
	if err := unix.Mkfifo(m.log, 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, &os.PathError{Op: "make pipe", Path: m.log, Err: err}
	}
	// For reading, too: so the monitor itself keeps the pipe open when nobody reads it.
	stderr, err := os.OpenFile(m.log, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	cmd.Stderr = stderr
	log, err := openLog(m.log)
	if err != nil {
		return nil, err
	}
	if err := start(cmd); err != nil {
		log.close()
		return nil, fmt.Errorf("start %s: %w", filepath.Base(cmd.Path), err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // the machine's watcher reports how it ended
	}()
	if err := began(cmd.Process.Pid); err != nil {
		log.close()
		return nil, err
	}
	return &launched{ended, log}, nil
}

// monitorLog is what a monitor has written to stderr. It is a pipe that no writer waits for: a guest can make its
// monitor warn without end, and what exceeds the size of the pipe is dropped. It is lost if the monitor ends while no
// program is attached.
type monitorLog struct{ fd int }

// logSize bounds what is read of a log. It is the usual size of a pipe.
const logSize = 64 << 10

func openLog(path string) (*monitorLog, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return &monitorLog{fd}, nil
}

// text takes what is in the log.
func (l *monitorLog) text() string {
	text := make([]byte, logSize)
	n := 0
	for n < len(text) {
		more, err := unix.Read(l.fd, text[n:])
		if err != nil || more == 0 { // empty
			break
		}
		n += more
	}
	return string(text[:n])
}

func (l *monitorLog) close() { _ = unix.Close(l.fd) }

// pause waits for the next attempt. It returns an error if there is none.
func (l *launched) pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-l.ended:
		return errMonitorEnded
	case <-time.After(bootPoll):
		return nil
	}
}

// finish ends the observation of a monitor whose machine has started, or has failed to: then it adds the end of the
// monitor's log, and of the console, to the error.
func (l *launched) finish(ctx context.Context, err error, console string) error {
	defer l.log.close()
	if err == nil || ctx.Err() != nil {
		return err
	}
	select { // a monitor that is about to end has perhaps not yet written why
	case <-l.ended:
	case <-time.After(bootPoll):
	}
	for _, words := range []string{lastLines(l.log.text()), bootMessage(console)} {
		if words != "" {
			err = fmt.Errorf("%w: %s", err, words)
		}
	}
	return err
}

// bootMessage returns what the end of a console says about a failed boot.
func bootMessage(console string) string {
	for l := range strings.Lines(strings.ToValidUTF8(console, "?")) {
		if _, reason, ok := strings.Cut(l, launch.BootFailed); ok {
			return strings.TrimSpace(reason)
		}
	}
	return lastLines(console)
}

func lastLines(text string) string {
	const shown, longest = 5, 1000
	text = strings.TrimSpace(text)
	lines := strings.Split(strings.ToValidUTF8(text[max(0, len(text)-longest):], "?"), "\n")
	return strings.Join(lines[max(0, len(lines)-shown):], "\n")
}

// awaitVsock waits until the guest listens on its vsock. console returns what the guest has written to the console.
func (l *launched) awaitVsock(ctx context.Context, dir string, console func() string) error {
	for {
		c, err := dialVsock(ctx, dir)
		if err == nil {
			return c.Close()
		}
		if strings.Contains(console(), launch.BootFailed) {
			return errors.New("the guest could not boot")
		}
		if err := l.pause(ctx); err != nil {
			return err
		}
	}
}

// moveOut moves a file that a monitor has written from an open directory into one that the monitor cannot change.
func moveOut(from int, name, to string) error {
	if err := unix.Renameat(from, name, unix.AT_FDCWD, filepath.Join(to, name)); err != nil {
		return &os.PathError{Op: "rename", Path: name, Err: err}
	}
	fd, err := openIn(to, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 {
		return fmt.Errorf("the monitor has written no regular file as %s", name)
	}
	if err := unix.Fchown(fd, os.Geteuid(), os.Getegid()); err != nil {
		return err
	}
	return unix.Fchmod(fd, 0o444)
}

// scanVersion returns the version in the first line of a program's output, after a prefix such as "Firecracker v".
func scanVersion(ctx context.Context, path, prefix string) (string, error) {
	out, err := output(ctx, "/", path, "--version")
	if err != nil {
		return "", err
	}
	lines := bufio.NewScanner(strings.NewReader(out))
	lines.Scan()
	_, version, ok := strings.Cut(lines.Text(), prefix)
	if !ok {
		return "", fmt.Errorf("%s does not report its version: %.100q", path, out)
	}
	version, _, _ = strings.Cut(version, " ")
	return version, nil
}

// olderThan reports whether a version such as 1.16.2-dev is lower than the minimum.
func olderThan(version, minimum string) bool {
	number := func(text string) (out [3]int) {
		text, _, _ = strings.Cut(strings.TrimPrefix(text, "v"), "-")
		for i, part := range strings.SplitN(text, ".", len(out)) {
			out[i], _ = strconv.Atoi(part) // not a number: 0, which is too old
		}
		return out
	}
	v, m := number(version), number(minimum)
	for i := range v {
		if v[i] != m[i] {
			return v[i] < m[i]
		}
	}
	return false
}
