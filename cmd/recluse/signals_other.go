//go:build !unix

package main

import (
	"os"
	"strconv"
	"syscall"
)

// endingSignals are those that ask the program to end.
var endingSignals = []os.Signal{os.Interrupt}

func ignorePipe() {}

func notifyResize(chan<- os.Signal) {}

func inBackground(int) bool { return false }

// signalName is the name that people know.
func signalName(s syscall.Signal) string { return s.String() }

// parseSignal reads a number: names differ between systems.
func parseSignal(s string) (syscall.Signal, bool) {
	n, err := strconv.Atoi(s)
	return syscall.Signal(n), err == nil && n > 0 && n < 65
}
