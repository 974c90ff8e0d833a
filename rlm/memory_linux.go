package rlm

import "golang.org/x/sys/unix"

// hostMemory is all the memory of this machine, or 0 when it is not known.
func hostMemory() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit)
}
