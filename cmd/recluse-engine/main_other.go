//go:build !linux

// Command recluse-engine is gVisor's runsc with only the commands that recluse needs. gVisor runs only on Linux.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "recluse-engine runs only on Linux: build it with GOOS=linux")
	os.Exit(2)
}
