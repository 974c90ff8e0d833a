// Package pidfd watches and signals processes of the host that need not be our children. It never mistakes a later
// process with the same pid for them.
package pidfd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Process is an open process. Its methods may be called from several goroutines.
type Process struct {
	pid  int
	file *os.File
	conn syscall.RawConn
}

// Open opens a process. The error is unix.ESRCH if there is no process with that pid. From then on the Process refers
// to this process only. A caller that identifies the process by more than its pid must check that after Open.
func Open(pid int) (*Process, error) {
	if pid <= 0 {
		return nil, unix.ESRCH
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("pidfd of %d: %w", pid, err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // so that the runtime's poller accepts it
		return nil, errors.Join(err, unix.Close(fd))
	}
	p := &Process{pid: pid, file: os.NewFile(uintptr(fd), "pidfd")}
	if p.conn, err = p.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, p.file.Close())
	}
	return p, nil
}

// PID returns the pid of the process.
func (p *Process) PID() int { return p.pid }

// Close closes the descriptor; a Wait then returns an error.
func (p *Process) Close() { _ = p.file.Close() }

// Wait waits until the process or ctx has ended. It uses the runtime's poller and needs no thread. The end was noticed
// within 5 ms. Only one Wait may run at a time.
func (p *Process) Wait(ctx context.Context) error {
	err := p.file.SetReadDeadline(time.Time{})
	stop := context.AfterFunc(ctx, func() { _ = p.file.SetReadDeadline(time.Now()) })
	defer stop()
	if err == nil {
		err = p.conn.Read(ended)
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Ended reports whether the process has ended, or the Process was closed.
func (p *Process) Ended() bool {
	over := false
	err := p.conn.Control(func(fd uintptr) { over = ended(fd) })
	return over || err != nil
}

// ended reports whether the process of a pidfd has ended: then the pidfd is readable.
func ended(fd uintptr) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
}

// Signal sends a signal. The error is unix.ESRCH if the process has ended.
func (p *Process) Signal(sig unix.Signal) error {
	var sent error
	err := p.conn.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), sig, nil, 0) })
	return errors.Join(err, sent)
}

// ExitStatus returns the wait status of a process that is not our child. The kernel reports it until the process is
// reaped, and from Linux 6.15 on also later.
func (p *Process) ExitStatus() (status syscall.WaitStatus, ok bool) {
	for range 20 { // the process may be reaped between the two reads
		if status, ok := p.zombieStatus(); ok {
			return status, true
		}
		status, err := p.infoStatus()
		if err == nil {
			return status, true
		}
		if !errors.Is(err, unix.ESRCH) {
			return 0, false
		}
		time.Sleep(5 * time.Millisecond)
	}
	return 0, false
}

// infoStatus reads the status with an ioctl. Up to Linux 6.14 the error is unix.ENOTTY or unix.ESRCH.
func (p *Process) infoStatus() (syscall.WaitStatus, error) {
	const (
		pidfdGetInfo  = 0xC040FF0B // _IOWR(0xFF, 11, struct pidfd_info), 64 bytes
		pidfdInfoExit = 1 << 3
	)
	info := struct {
		mask, cgroup uint64
		ids          [11]uint32
		exit         int32
	}{mask: pidfdInfoExit}
	var errno unix.Errno
	err := p.conn.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
	})
	switch {
	case err != nil:
		return 0, err
	case errno != 0:
		return 0, errno
	case info.mask&pidfdInfoExit == 0:
		return 0, unix.ESRCH
	}
	return syscall.WaitStatus(info.exit), nil
}

// zombieStatus reads the status of a process that is not reaped yet: an init may take some time to reap it.
func (p *Process) zombieStatus() (syscall.WaitStatus, bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	if err != nil {
		return 0, false
	}
	// "pid (name) state ...": the name may contain any character; the last field is the status.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 2 || fields[0] != "Z" {
		return 0, false
	}
	status, err := strconv.ParseUint(fields[len(fields)-1], 10, 32)
	// While the process can be signalled, its pid is not reused, so the file belongs to this process. The kernel shows
	// 0 to readers without permission.
	return syscall.WaitStatus(status), err == nil && status != 0 && p.Signal(0) == nil
}
