package pidfd

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, args ...string) (*exec.Cmd, *Process) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := Open(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return cmd, p
}

func TestTheEndOfAProcessIsSeen(t *testing.T) {
	cmd, p := start(t, "sleep", "1000")
	if p.Ended() || p.PID() != cmd.Process.Pid {
		t.Errorf("process %d has ended", p.PID())
	}
	if err := p.WaitFor(t.Context(), 20*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("waited in vain: %v", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.WaitFor(gone, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	waited := make(chan error)
	go func() { waited <- p.Wait() }()
	if err := p.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil || !p.Ended() {
		t.Errorf("%v, ended: %v", err, p.Ended())
	}
	if err := p.WaitFor(t.Context(), time.Minute); err != nil {
		t.Error(err)
	}
	if status, ok := p.ExitStatus(); !ok || status.Signal() != unix.SIGKILL {
		t.Errorf("status %v, %v", status, ok)
	}
	_ = cmd.Wait()
	if err := p.Signal(unix.SIGKILL); !errors.Is(err, unix.ESRCH) {
		t.Errorf("a signal to nobody: %v", err)
	}
	if _, err := Open(cmd.Process.Pid); !errors.Is(err, unix.ESRCH) {
		t.Errorf("nobody was opened: %v", err)
	}
}

func TestAnExitCodeIsRead(t *testing.T) {
	cmd, p := start(t, "sh", "-c", "exit 7")
	if err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	if status, ok := p.ExitStatus(); !ok || !status.Exited() || status.ExitStatus() != 7 {
		t.Errorf("status %v, %v", status, ok)
	}
	_ = cmd.Wait()
}

func TestCloseEndsAWait(t *testing.T) {
	cmd, p := start(t, "sleep", "1000")
	waited := make(chan error)
	go func() { waited <- p.Wait() }()
	time.Sleep(10 * time.Millisecond)
	p.Close()
	if err := <-waited; err == nil || !p.Ended() {
		t.Errorf("%v", err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}
