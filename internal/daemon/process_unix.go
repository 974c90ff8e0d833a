//go:build unix

package daemon

import "syscall"

// detached returns the attributes of a process in its own session, which gets no signals of our terminal.
func detached() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
