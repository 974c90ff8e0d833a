//go:build !linux

// Command bench measures gVisor sandboxes, which run only on Linux.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "bench: gVisor sandboxes run only on Linux")
	os.Exit(2)
}
