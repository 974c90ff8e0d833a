package pidfd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
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
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	for range 2 { // the second Wait begins after the end
		if err := p.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait: %v", err)
		}
	}
	waited := make(chan error)
	go func() { waited <- p.Wait(t.Context()) }()
	if err := p.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil || !p.Ended() {
		t.Errorf("%v, ended: %v", err, p.Ended())
	}
	if err := p.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	if status, ok := p.ExitStatus(); !ok || status.Signal() != unix.SIGKILL {
		t.Errorf("status %v, %v", status, ok)
	}
	_ = cmd.Wait()
	if err := p.Signal(unix.SIGKILL); !errors.Is(err, unix.ESRCH) {
		t.Errorf("a signal to an ended process: %v", err)
	}
	if _, err := Open(cmd.Process.Pid); !errors.Is(err, unix.ESRCH) {
		t.Errorf("an ended process was opened: %v", err)
	}
}

func TestHowAProcessEndedIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		want   syscall.WaitStatus
	}{
		"an exit status": {"exit 7", 7 << 8},
		"a signal":       {"kill -9 $$", 9},
	} {
		t.Run(name, func(t *testing.T) {
			// A zombie of this process: it is reaped only by cmd.Wait.
			cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "read -r go; "+c.script)
			in, err := cmd.StdinPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			p, err := Open(cmd.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			if status, ok := p.zombieStatus(); ok {
				t.Errorf("while it runs: %d", status)
			}
			if _, err := in.Write([]byte("go\n")); err != nil {
				t.Fatal(err)
			}
			if err := p.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			if status, ok := p.ExitStatus(); !ok || status != c.want {
				t.Errorf("before it is reaped: %d %t, want %d", status, ok, c.want)
			}
			_ = cmd.Wait() // the failure is intended
			status, ok := p.ExitStatus()
			if ok && status != c.want || !ok && !endUntold(t) {
				t.Errorf("after it was reaped: %d %t, want %d", status, ok, c.want)
			}
			other := &Process{pid: os.Getpid(), file: p.file, conn: p.conn}
			if status, ok := other.zombieStatus(); ok {
				t.Errorf("of another process: %d", status)
			}
		})
	}
}

// endUntold reports whether the kernel does not return the status of a process that has been reaped.
func endUntold(t *testing.T) bool {
	t.Helper()
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(release), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	return major < 6 || major == 6 && minor < 15
}

func TestCloseEndsAWait(t *testing.T) {
	cmd, p := start(t, "sleep", "1000")
	waited := make(chan error)
	go func() { waited <- p.Wait(t.Context()) }()
	time.Sleep(10 * time.Millisecond)
	p.Close()
	if err := <-waited; err == nil || !p.Ended() {
		t.Errorf("%v", err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}
