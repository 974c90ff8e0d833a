//go:build !linux

package rlm

// hostMemory returns the total memory of the host in bytes, or 0 if it is unknown.
func hostMemory() int64 { return 0 }
