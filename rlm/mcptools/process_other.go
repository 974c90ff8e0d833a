//go:build !unix

package mcptools

import (
	"os"
	"os/exec"
)

// ownGroup does nothing here.
func ownGroup(*exec.Cmd) {}

// killGroup kills the program alone.
func killGroup(p *os.Process) error { return p.Kill() }
