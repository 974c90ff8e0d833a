package server

import (
	"os"
	"syscall"
)

// DieOverAnswers makes the program kill itself before it stores an answer for an idempotency key.
func DieOverAnswers() {
	beforeStore = func() {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // until the signal arrives
	}
}
