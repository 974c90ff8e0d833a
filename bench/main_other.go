//go:build !linux

// Command bench measures gVisor sandboxes, so it runs on Linux only.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "bench: gVisor sandboxes exist on Linux only")
	os.Exit(2)
}
