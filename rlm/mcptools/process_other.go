//go:build !unix

package mcptools

import "os/exec"

// ownGroup does nothing here: the program alone is killed.
func ownGroup(*exec.Cmd) {}
