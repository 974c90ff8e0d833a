//go:build !unix

package main

import (
	"os"
	"strconv"
	"syscall"
)

// endingSignals are the signals that end the program.
var endingSignals = []os.Signal{os.Interrupt}

func ignorePipe() {}

func notifyResize(chan<- os.Signal) {}

func inBackground(int) bool { return false }

// signalName returns the name of a signal.
func signalName(s syscall.Signal) string { return s.String() }

// parseSignal parses a number. Names are not supported, because they differ between systems.
func parseSignal(s string) (syscall.Signal, bool) {
	n, err := strconv.Atoi(s)
	return syscall.Signal(n), err == nil && n > 0 && n < 65
}
