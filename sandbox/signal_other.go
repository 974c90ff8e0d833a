//go:build !unix

package sandbox

import "syscall"

func signalName(s syscall.Signal) string { return s.String() }
