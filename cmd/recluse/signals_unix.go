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

// endingSignals are those that ask the program to end.
var endingSignals = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}

// ignorePipe makes a write to a closed pipe an error. As a signal it would end us with a sandbox still running.
func ignorePipe() { signal.Ignore(syscall.SIGPIPE) }

// notifyResize has a value sent whenever the terminal's size changes.
func notifyResize(c chan<- os.Signal) { signal.Notify(c, syscall.SIGWINCH) }

// inBackground reports whether the shell runs us in the background of the terminal fd. Reading from it would stop us.
func inBackground(fd int) bool {
	foreground, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil && foreground != unix.Getpgrp()
}

// signalName is the name that people know.
func signalName(s syscall.Signal) string { return unix.SignalName(s) }

// parseSignal reads TERM, SIGTERM or 15.
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
