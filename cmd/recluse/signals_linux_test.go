package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/recluse-dev/recluse/internal/xdg"
)

// sandboxOf returns the sandbox that a process has made, from its record.
func sandboxOf(t *testing.T, pid int) string {
	t.Helper()
	data, err := xdg.Data()
	if err != nil {
		t.Fatal(err)
	}
	records, err := filepath.Glob(filepath.Join(data, "gvisor", "sandboxes", "*", "sandbox.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range records {
		var r struct {
			ID    string
			Owner struct{ PID int }
		}
		// Records of other tests may disappear meanwhile.
		if text, err := os.ReadFile(path); err == nil && json.Unmarshal(text, &r) == nil && r.Owner.PID == pid {
			return r.ID
		}
	}
	t.Fatalf("none of %d sandboxes belongs to process %d", len(records), pid)
	return ""
}

// leftOf returns the files, processes, mounts and cgroups of a sandbox on this machine.
func leftOf(t *testing.T, id string) (left []string) {
	t.Helper()
	data, err := xdg.Data()
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{
		filepath.Join(data, "gvisor", "sandboxes", id), filepath.Join(data, "gvisor", "engine", "*"+id+"*"),
		"/sys/fs/cgroup/recluse/" + id, "/sys/fs/cgroup/*/recluse/" + id,
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, found...)
	}
	texts, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(texts, "/proc/self/mountinfo") {
		// A process that ends meanwhile does not count.
		if text, err := os.ReadFile(path); err == nil && bytes.Contains(text, []byte(id)) {
			left = append(left, path)
		}
	}
	return left
}

// nothingLeft waits until nothing is left of a sandbox. On a busy machine, killed processes take a moment to disappear.
func nothingLeft(t *testing.T, id string) {
	t.Helper()
	limit := time.Now().Add(patienceOf)
	for left := leftOf(t, id); len(left) > 0; left = leftOf(t, id) {
		if time.Now().After(limit) {
			t.Fatalf("left behind: %q", left)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// endless starts an endless command that ignores signals, and returns its sandbox.
func endless(t *testing.T) (cmd *exec.Cmd, errs *heard, id string) {
	t.Helper()
	cmd = command(t, "exec", "--", "sh", "-c", "trap '' INT TERM; echo up; sleep 600")
	out, errs := newHeard(), newHeard()
	cmd.Stdout, cmd.Stderr = out, errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out.await(t, "up")
	return cmd, errs, sandboxOf(t, cmd.Process.Pid)
}

func TestSignals(t *testing.T) {
	ready(t)
	for _, tt := range []struct {
		name   string
		signal syscall.Signal
		status int
		stderr string
	}{
		{"Ctrl-C", syscall.SIGINT, 130, "recluse: cancelled by SIGINT"},
		{"terminate", syscall.SIGTERM, 143, "recluse: cancelled by SIGTERM"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cmd, errs, id := endless(t)
			if left := leftOf(t, id); len(left) == 0 {
				t.Error("nothing is found of a sandbox that runs")
			}
			if err := cmd.Process.Signal(tt.signal); err != nil {
				t.Error(err)
			}
			if got := status(t, cmd.Wait()); got != tt.status {
				t.Errorf("status %d, want %d", got, tt.status)
			}
			nothingLeft(t, id)
			if !strings.Contains(errs.String(), tt.stderr) {
				t.Errorf("stderr %q", errs)
			}
		})
	}
}

// freeze stops the processes of a sandbox, so that it does not answer.
func freeze(t *testing.T, id string) {
	t.Helper()
	frozen := 0
	for _, path := range leftOf(t, id) {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil || filepath.Base(path) != "cmdline" {
			continue
		}
		p, err := os.FindProcess(pid)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Kill() }) // otherwise a failed test leaves the process forever
		if err := p.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		frozen++
	}
	if frozen == 0 {
		t.Fatalf("no process of sandbox %s is found", id)
	}
}

func TestASecondCtrlCLeavesAtOnce(t *testing.T) {
	ready(t)
	cmd, errs, id := endless(t)
	freeze(t, id) // the first Ctrl-C waits for an answer that does not come
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	// Two signals that are sent at once may arrive as one, so the signal is sent repeatedly.
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	for pressed := 1; ; pressed++ {
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Error(err)
		}
		select {
		case <-again.C:
			continue
		case err := <-ended:
			if got := status(t, err); got != 130 || pressed < 2 {
				t.Errorf("status %d after %d times, want 130 after the second", got, pressed)
			}
		}
		break
	}
	nothingLeft(t, id)
	if !strings.Contains(errs.String(), "recluse: exited at once") {
		t.Errorf("stderr %q", errs)
	}
}
