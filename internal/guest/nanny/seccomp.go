//go:build linux

package nanny

import (
	"fmt"
	"runtime"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Code in a sandbox has no capabilities, but in its own user namespace it would have all of them: it could mount file
// systems without our limits on size and number of files, and create processes that RLIMIT_NPROC does not count. And
// some system calls use memory of the sandbox's kernel itself, which neither counts it nor can free it by killing a
// process. The filter denies both to everything below the nanny, permanently.

// maxSegment is the largest segment of System V shared memory. A segment stays when all processes have ended, so no
// process can be killed to free it: all 4,096 segments together must fit into the reserve. Databases need one of a few
// bytes; other programs use /dev/shm.
const maxSegment = 16 << 10

// maxSemaphores is the largest set of System V semaphores; the kernel's limit of 32,000 would cost 1 MB per set.
const maxSemaphores = 32

// denial is one rule: it denies a call, or only a call whose argument has one of bits set, is greater than above, or is
// equal.
type denial struct {
	call  uint32
	errno unix.Errno
	arg   uint32 // number of the argument that bits or above refers to
	high  bool   // compare the upper half of the argument
	bits  uint32
	above uint32
	equal uint32
}

var denials = []denial{
	// A user namespace, by any of the calls that can create one. The flags of clone3 are in memory, which a filter
	// cannot read; libraries fall back to clone if clone3 is missing.
	{call: unix.SYS_CLONE3, errno: unix.ENOSYS},
	{call: unix.SYS_UNSHARE, errno: unix.EPERM, arg: 0, bits: unix.CLONE_NEWUSER},
	{call: unix.SYS_CLONE, errno: unix.EPERM, arg: 0, bits: unix.CLONE_NEWUSER},
	{call: unix.SYS_SETNS, errno: unix.EPERM},
	// Mounts.
	{call: unix.SYS_MOUNT, errno: unix.EPERM},
	{call: unix.SYS_UMOUNT2, errno: unix.EPERM},
	{call: unix.SYS_PIVOT_ROOT, errno: unix.EPERM},
	{call: unix.SYS_FSOPEN, errno: unix.EPERM},
	{call: unix.SYS_OPEN_TREE, errno: unix.EPERM},
	{call: unix.SYS_MOVE_MOUNT, errno: unix.EPERM},
	// io_uring: its operations bypass the filter, and it had many vulnerabilities. gVisor does not have it; the kernel
	// of a container may.
	{call: unix.SYS_IO_URING_SETUP, errno: unix.ENOSYS},
	{call: unix.SYS_IO_URING_ENTER, errno: unix.ENOSYS},
	{call: unix.SYS_IO_URING_REGISTER, errno: unix.ENOSYS},
	// Kernel memory that outlives the process: extended attributes, message queues, semaphore sets, keys.
	{call: unix.SYS_SETXATTR, errno: unix.EOPNOTSUPP},
	{call: unix.SYS_LSETXATTR, errno: unix.EOPNOTSUPP},
	{call: unix.SYS_FSETXATTR, errno: unix.EOPNOTSUPP},
	{call: unix.SYS_MSGGET, errno: unix.ENOSYS},
	{call: unix.SYS_SEMGET, errno: unix.ENOSPC, arg: 1, above: maxSemaphores},
	{call: unix.SYS_SHMGET, errno: unix.EINVAL, arg: 1, above: maxSegment},
	{call: unix.SYS_SHMGET, errno: unix.EINVAL, arg: 1, high: true, bits: 0xffffffff},
	{call: unix.SYS_ADD_KEY, errno: unix.EPERM},
	{call: unix.SYS_REQUEST_KEY, errno: unix.EPERM},
	{call: unix.SYS_KEYCTL, errno: unix.EPERM},
}

// noPing denies ping sockets, where nothing outside answers ICMP: gVisor does not report ICMP errors to them, so that a
// ping would wait for its timeout. The error is that of Linux without net.ipv4.ping_group_range.
var noPing = denial{call: unix.SYS_SOCKET, errno: unix.EACCES, arg: 2, equal: unix.IPPROTO_ICMP}

// noOwner denies root to choose the process that gets the signals of a file: the kernel lets uid 0 send any signal to
// any process in this way, whatever its user namespace.
var noOwner = []denial{
	{call: unix.SYS_FCNTL, errno: unix.EPERM, arg: 1, equal: unix.F_SETOWN},
	{call: unix.SYS_FCNTL, errno: unix.EPERM, arg: 1, equal: unix.F_SETOWN_EX},
	{call: unix.SYS_IOCTL, errno: unix.EPERM, arg: 1, equal: 0x8901}, // FIOSETOWN
	{call: unix.SYS_IOCTL, errno: unix.EPERM, arg: 1, equal: 0x8902}, // SIOCSPGRP
}

// program compiles the rules to a BPF program.
func program(rules []denial) []unix.SockFilter {
	const (
		load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		any   = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		more  = unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K
		ret   = unix.BPF_RET | unix.BPF_K
		// struct seccomp_data: the number of the call, the architecture, an address, six arguments of 8 bytes. The
		// lower half of an argument comes first on both supported architectures.
		offCall, offArch, offArgs = 0, 4, 16
	)
	arch := uint32(unix.AUDIT_ARCH_X86_64)
	if runtime.GOARCH == "arm64" {
		arch = unix.AUDIT_ARCH_AARCH64
	}
	p := []unix.SockFilter{
		{Code: load, K: offArch},
		// Reject calls of another architecture: its numbers have other meanings.
		{Code: equal, K: arch, Jt: 1},
		{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: load, K: offCall},
	}
	for _, r := range rules {
		refuse := unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(r.errno)}
		if r.bits == 0 && r.above == 0 && r.equal == 0 {
			p = append(p, unix.SockFilter{Code: equal, K: r.call, Jf: 1}, refuse)
			continue
		}
		test := unix.SockFilter{Code: any, K: r.bits, Jf: 1}
		switch {
		case r.above > 0:
			test = unix.SockFilter{Code: more, K: r.above, Jf: 1}
		case r.equal > 0:
			test = unix.SockFilter{Code: equal, K: r.equal, Jf: 1}
		}
		word := offArgs + 8*r.arg
		if r.high {
			word += 4
		}
		p = append(p,
			unix.SockFilter{Code: equal, K: r.call, Jf: 4},
			unix.SockFilter{Code: load, K: word},
			test, refuse,
			unix.SockFilter{Code: load, K: offCall}, // for the next rules
		)
	}
	return append(p, unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ALLOW})
}

// confine installs the filter on all threads of this process, and so on everything that it starts.
//
// Preconditions: no_new_privs is set.
func confine(cfg Config) error {
	rules := denials
	if cfg.NoPing {
		rules = append(slices.Clip(rules), noPing)
	}
	if cfg.Root {
		rules = append(slices.Clip(rules), noOwner...)
	}
	p := program(rules)
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	_, _, e := syscall.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(p)
	if e != 0 {
		return fmt.Errorf("install the system call filter: %w", e)
	}
	return nil
}
