//go:build !unix

package procgroup

import "os/exec"

// Own does nothing on this system: only the command itself is killed.
func Own(*exec.Cmd) {}
