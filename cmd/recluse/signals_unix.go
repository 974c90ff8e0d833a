//go:build unix

package main

import (
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// endingSignals are the signals that end the program.
var endingSignals = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}

// ignorePipe makes a write to a closed pipe return an error. SIGPIPE would kill the program and leave a sandbox
// running.
func ignorePipe() { signal.Ignore(syscall.SIGPIPE) }

// notifyResize sends a value to c whenever the size of the terminal changes.
func notifyResize(c chan<- os.Signal) { signal.Notify(c, syscall.SIGWINCH) }

// inBackground reports whether this process is a background job of the terminal fd. Reading from the terminal would
// then stop the process.
func inBackground(fd int) bool {
	foreground, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil && foreground != unix.Getpgrp()
}

// signalName returns the name of a signal, such as SIGTERM.
func signalName(s syscall.Signal) string { return unix.SignalName(s) }

// parseSignal parses a signal written as TERM, SIGTERM or 15.
func parseSignal(s string) (syscall.Signal, bool) {
	if n, err := strconv.Atoi(s); err == nil {
		return syscall.Signal(n), n > 0 && n < 65
	}
	name := strings.ToUpper(s)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	sig := unix.SignalNum(name)
	return sig, sig != 0
}
