//go:build !linux

package config

// machineMemory returns the memory of this machine in bytes; 0: unknown.
func machineMemory() int64 { return 0 }
