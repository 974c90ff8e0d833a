//go:build !linux

package backendkit

import (
	"os"
	"runtime"
	"syscall"
)

// processStart returns 0, because the start time is unknown here. A program that got the PID of a dead program is
// therefore taken for it, and what the dead program left stays longer.
func processStart(int) uint64 { return 0 }

func processAlive(pid int, _ uint64) bool {
	p, err := os.FindProcess(pid)
	if err != nil {
		return false // Windows reports a missing process here
	}
	defer func() { _ = p.Release() }()
	if runtime.GOOS == "windows" {
		return true
	}
	err = p.Signal(syscall.Signal(0))
	return err == nil || os.IsPermission(err)
}
