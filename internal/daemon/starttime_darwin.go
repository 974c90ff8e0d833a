package daemon

import "golang.org/x/sys/unix"

// startTime returns the start time of a process in microseconds, or 0 if there is no such process.
func startTime(pid int) uint64 {
	p, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		return 0
	}
	return uint64(p.Proc.P_starttime.Nano() / 1000)
}
