//go:build !linux

package backendkit

import (
	"os"
	"runtime"
	"syscall"
)

// processStart is unknown here. A program that got the pid of a dead one is therefore taken for it, and
// what the dead one left stays a while longer.
func processStart(int) uint64 { return 0 }

func processAlive(pid int, _ uint64) bool {
	p, err := os.FindProcess(pid)
	if err != nil {
		return false // Windows tells here
	}
	defer func() { _ = p.Release() }()
	if runtime.GOOS == "windows" {
		return true
	}
	err = p.Signal(syscall.Signal(0))
	return err == nil || os.IsPermission(err)
}
