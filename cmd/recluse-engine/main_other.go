//go:build !linux

// Command recluse-engine is gVisor's runsc with the commands that recluse needs. gVisor
// is a Linux program.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "recluse-engine is a Linux program: build it with GOOS=linux")
	os.Exit(2)
}
