//go:build linux

package agent

import (
	"os"
	"os/signal"
	"syscall"
)

// deaf makes the first process of a sandbox survive every signal that code inside may send it. SIGKILL and SIGSTOP the kernel keeps from it
// already, and all others for which it has no handler; but Go has one for each, and ends the program. In a container code and guest are
// the same user. The signals must be caught and not ignored, for children inherit what is ignored.
func deaf() {
	if os.Getpid() != 1 {
		return
	}
	var all []os.Signal
	for s := syscall.Signal(1); s < 32; s++ {
		switch s {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCHLD, syscall.SIGURG, syscall.SIGPROF: // not to be caught, or needed by Go
		default:
			all = append(all, s)
		}
	}
	signal.Notify(make(chan os.Signal, 1), all...) // nobody listens
}
