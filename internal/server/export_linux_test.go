package server

import (
	"os"
	"syscall"
)

// DieOverAnswers lets the program be killed before it notes an answer under an idempotency key.
func DieOverAnswers() {
	answered = func() {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // until it arrives
	}
}
