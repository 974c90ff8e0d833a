package rlm

import "golang.org/x/sys/unix"

// hostMemory returns the total memory of the host in bytes, or 0 if it is unknown.
func hostMemory() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit)
}
