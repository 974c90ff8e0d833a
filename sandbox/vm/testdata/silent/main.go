//go:build linux

// Command silent is a guest that never answers.
package main

import "golang.org/x/sys/unix"

func main() {
	for {
		_ = unix.Pause() // returns after a signal
	}
}
