//go:build !linux

package rlm

// hostMemory is all the memory of this machine, or 0 when it is not known.
func hostMemory() int64 { return 0 }
