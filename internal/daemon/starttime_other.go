//go:build !linux && !darwin

package daemon

// startTime returns 0, because the start time of a process is not available on this system.
func startTime(int) uint64 { return 0 }
