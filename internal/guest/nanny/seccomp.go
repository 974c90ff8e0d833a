//go:build linux

package nanny

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What runs in a sandbox has no capabilities, but in a user namespace of its own it would have all of them there: it could
// mount file systems without our limits on size and number of files, and make processes that no RLIMIT_NPROC counts. And some
// calls take memory of the sandbox's kernel itself, which neither counts it nor can give it back by killing a process. The
// filter takes both away from everything below the nanny, for good.

// maxSegment is the largest segment of System V shared memory. It stays when all processes are gone, so nobody can be killed for
// it: all 4,096 segments together must fit into the reserve. Databases need one of a few bytes; the rest uses /dev/shm.
const maxSegment = 16 << 10

// maxSemaphores is the largest set of System V semaphores; the kernel's own 32,000 would cost 1 MB a set.
const maxSemaphores = 32

// denial is one rule: the call, or the call with an argument that has one of these bits or is larger than this.
type denial struct {
	call  uint32
	errno unix.Errno
	arg   uint32 // which argument, with bits or above
	high  bool   // its upper half
	bits  uint32
	above uint32
}

var denials = []denial{
	// A user namespace, by any of the ways to one. The flags of clone3 lie in memory, where a filter cannot look: libraries
	// go back to clone when it is missing.
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
	// Calls that no filter sees, and the door of many a hole. gVisor has none of it; a container's kernel may.
	{call: unix.SYS_IO_URING_SETUP, errno: unix.ENOSYS},
	{call: unix.SYS_IO_URING_ENTER, errno: unix.ENOSYS},
	{call: unix.SYS_IO_URING_REGISTER, errno: unix.ENOSYS},
	// Memory of the kernel that outlives the process: attributes of files, message queues, sets of semaphores, keys.
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

// program turns the rules into a filter.
func program(rules []denial) []unix.SockFilter {
	const (
		load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		any   = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		more  = unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K
		ret   = unix.BPF_RET | unix.BPF_K
		// struct seccomp_data: the call's number, the architecture, an address, six arguments of 8 bytes. The lower half of one
		// stands first on the machines we know.
		offCall, offArch, offArgs = 0, 4, 16
	)
	arch := uint32(unix.AUDIT_ARCH_X86_64)
	if runtime.GOARCH == "arm64" {
		arch = unix.AUDIT_ARCH_AARCH64
	}
	p := []unix.SockFilter{
		{Code: load, K: offArch},
		// Calls by another architecture's numbers would mean something else here.
		{Code: equal, K: arch, Jt: 1},
		{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: load, K: offCall},
	}
	for _, r := range rules {
		refuse := unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(r.errno)}
		if r.bits == 0 && r.above == 0 {
			p = append(p, unix.SockFilter{Code: equal, K: r.call, Jf: 1}, refuse)
			continue
		}
		test := unix.SockFilter{Code: any, K: r.bits, Jf: 1}
		if r.above > 0 {
			test = unix.SockFilter{Code: more, K: r.above, Jf: 1}
		}
		word := offArgs + 8*r.arg
		if r.high {
			word += 4
		}
		p = append(p,
			unix.SockFilter{Code: equal, K: r.call, Jf: 4},
			unix.SockFilter{Code: load, K: word},
			test, refuse,
			unix.SockFilter{Code: load, K: offCall}, // for the rules that follow
		)
	}
	return append(p, unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ALLOW})
}

// confine installs the filter on every thread of this process, and so on everything that it starts.
//
// Preconditions: no_new_privs is set.
func confine() error {
	p := program(denials)
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	_, _, e := syscall.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(p)
	if e != 0 {
		return fmt.Errorf("install the filter of system calls: %w", e)
	}
	return nil
}
