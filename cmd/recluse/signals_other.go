//go:build !unix

package main

import (
	"os"
	"syscall"
)

// endingSignals are those that ask the program to end.
var endingSignals = []os.Signal{os.Interrupt}

func ignorePipe() {}

func notifyResize(chan<- os.Signal) {}

func inBackground(int) bool { return false }

// signalName is the name that people know.
func signalName(s syscall.Signal) string { return s.String() }
