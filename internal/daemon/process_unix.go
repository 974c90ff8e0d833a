//go:build unix

package daemon

import "syscall"

// detached makes a process that neither our terminal nor our end reaches.
func detached() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
