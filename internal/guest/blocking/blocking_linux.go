package blocking

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The runtime keeps the names and types of these two functions stable for packages that wait: see the comments in its
// source.

//go:linkname entersyscallblock runtime.entersyscallblock
func entersyscallblock()

//go:linkname exitsyscall runtime.exitsyscall
func exitsyscall()

// call makes a system call that waits. Between entersyscallblock and exitsyscall, nothing may grow the stack or be
// instrumented by the race detector: see syscall.Syscall.
//
//go:nosplit
//go:norace
func call(trap, a uintptr, p unsafe.Pointer, b uintptr, q unsafe.Pointer) (uintptr, syscall.Errno) {
	entersyscallblock()
	n, _, errno := syscall.RawSyscall6(trap, a, uintptr(p), b, uintptr(q), 0, 0)
	exitsyscall()
	runtime.KeepAlive(p)
	runtime.KeepAlive(q)
	return n, errno
}

// result converts a result to the form that package unix returns.
func result(n uintptr, errno syscall.Errno) (int, error) {
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}

// Poll is unix.Poll.
func Poll(fds []unix.PollFd, milliseconds int) (int, error) {
	var until *unix.Timespec
	if milliseconds >= 0 {
		t := unix.NsecToTimespec(int64(milliseconds) * 1e6)
		until = &t
	}
	return result(poll(fds, until))
}

// poll is call for ppoll, which has its arguments in another order.
//
//go:nosplit
//go:norace
func poll(fds []unix.PollFd, until *unix.Timespec) (uintptr, syscall.Errno) {
	entersyscallblock()
	n, _, errno := syscall.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(fds))),
		uintptr(len(fds)), uintptr(unsafe.Pointer(until)), 0, 0, 0)
	exitsyscall()
	runtime.KeepAlive(fds)
	runtime.KeepAlive(until)
	return n, errno
}

// Wait4 is unix.Wait4.
func Wait4(pid int, status *unix.WaitStatus, options int, usage *unix.Rusage) (int, error) {
	var s int32
	n, err := result(call(unix.SYS_WAIT4, uintptr(pid), unsafe.Pointer(&s), uintptr(options), unsafe.Pointer(usage)))
	if err == nil && status != nil {
		*status = unix.WaitStatus(s)
	}
	return n, err
}

// Recvmsg is unix.Recvmsg on a socket with one known peer.
func Recvmsg(fd int, p, oob []byte, flags int) (n, oobn int, err error) {
	vector := unix.Iovec{Base: unsafe.SliceData(p)}
	vector.SetLen(len(p))
	message := unix.Msghdr{Iov: &vector, Control: unsafe.SliceData(oob)}
	message.SetIovlen(1)
	message.SetControllen(len(oob))
	if n, err = result(call(unix.SYS_RECVMSG, uintptr(fd), unsafe.Pointer(&message), uintptr(flags), nil)); err != nil {
		return n, 0, err
	}
	return n, int(message.Controllen), nil
}

// Read is unix.Read.
func Read(fd int, p []byte) (int, error) {
	return result(call(unix.SYS_READ, uintptr(fd), unsafe.Pointer(unsafe.SliceData(p)), uintptr(len(p)), nil))
}
