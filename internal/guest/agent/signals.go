//go:build linux

package agent

import (
	"os"
	"os/signal"
	"syscall"
)

// catchSignals makes the first process of a sandbox survive every signal that code inside may send. The kernel does not
// deliver SIGKILL, SIGSTOP and signals without a handler to it, but the Go runtime has a handler for each signal, which
// ends the program. In a container, code and guest run as the same user. The signals must be caught and not ignored,
// because children inherit ignored signals.
func catchSignals() {
	if os.Getpid() != 1 {
		return
	}
	var all []os.Signal
	for s := syscall.Signal(1); s < 32; s++ {
		switch s {
		// SIGKILL and SIGSTOP cannot be caught, and Go needs the others.
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCHLD, syscall.SIGURG, syscall.SIGPROF:
		default:
			all = append(all, s)
		}
	}
	signal.Notify(make(chan os.Signal, 1), all...) // the channel is never read
}
