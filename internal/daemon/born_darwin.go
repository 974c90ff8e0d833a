package daemon

import "golang.org/x/sys/unix"

// born gives when a process began, in microseconds; 0 where there is none.
func born(pid int) uint64 {
	p, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		return 0
	}
	return uint64(p.Proc.P_starttime.Nano() / 1000)
}
