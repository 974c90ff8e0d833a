//go:build !unix

package llm

import "os/exec"

// ownGroup does nothing here: the command alone is ended.
func ownGroup(*exec.Cmd) {}
