//go:build !linux

// Command recluse-guest is the agent that recluse starts inside a sandbox. Sandboxes
// are Linux machines; build it with GOOS=linux.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "recluse-guest runs inside a sandbox, which is a Linux machine: build it with GOOS=linux")
	os.Exit(2)
}
