//go:build !unix

package main

import "os"

// endingSignals are those that ask the program to end.
var endingSignals = []os.Signal{os.Interrupt}

func ignorePipe() {}

func notifyResize(chan<- os.Signal) {}

func inBackground(int) bool { return false }
