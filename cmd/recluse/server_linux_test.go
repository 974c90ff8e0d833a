package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestKilledServerLosesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.must("exec", "--session", "work", "--python", "x = 41")
	id := strings.TrimSpace(w.must("exec", "--session", "work", "--background", "--", "sh", "-c", "sleep 1; echo whole"))
	first := w.server()
	if err := syscall.Kill(first.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.expect("42\n", "exec", "--session", "work", "--python", "x + 1")
	if second := w.server(); second.PID == first.PID {
		t.Errorf("the same server: %+v", second)
	}
	w.expect("whole\n", "logs", "work", id, "--follow")
}

func TestServerKilledUnderARunningCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.must("session", "open", "work")
	cmd := w.command("exec", "--session", "work", "--", "sh", "-c", "echo one; until test -e go; do sleep 0.1; done; echo two; exit 3")
	out, errs := newHeard(), newHeard()
	cmd.Stdout, cmd.Stderr = out, errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out.await(t, "one\n")
	if err := syscall.Kill(w.server().PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.must("exec", "--session", "work", "--", "touch", "go")
	if got := status(t, cmd.Wait()); got != 3 || out.String() != "one\ntwo\n" {
		t.Errorf("status %d, stdout %q, stderr %q", got, out, errs)
	}
}

func TestServerIsReplacedWhenItHangsOrItsSocketIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.must("exec", "--session", "work", "--python", "x = 41")
	first := w.server()
	if err := os.Remove(filepath.Join(filepath.Dir(first.Socket), "control.sock")); err != nil {
		t.Fatal(err)
	}
	w.expect("42\n", "exec", "--session", "work", "--python", "x + 1")
	second := w.server()
	if second.PID == first.PID {
		t.Error("one without a socket was found")
	}
	w.stop(second.PID)
	w.expect("43\n", "exec", "--session", "work", "--python", "x + 2")
	if third := w.server(); third.PID == second.PID {
		t.Error("one that hangs was used")
	}
}

// stop sends SIGSTOP to a process and waits until it is stopped.
func (w *world) stop(pid int) {
	w.t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		w.t.Fatal(err)
	}
	w.await("it is stopped", func() bool {
		tasks, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/stat")
		for _, task := range tasks {
			if b, err := os.ReadFile(task); err == nil && !bytes.Contains(b, []byte(") T ")) {
				return false
			}
		}
		return true
	})
}

func TestOlderServerIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	old := filepath.Join(t.TempDir(), "recluse-old")
	// Copied by another process: a child that another test starts meanwhile would inherit the open file, and executing
	// it would fail.
	if out, err := exec.CommandContext(t.Context(), "cp", self, old).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.Chtimes(old, time.Time{}, time.Now().Add(-24*time.Hour)); err != nil {
		t.Fatal(err)
	}
	w.self = old
	w.must("exec", "--session", "work", "--python", "x = 41")
	first := w.server()
	w.self = ""
	w.expect("42\n", "exec", "--session", "work", "--python", "x + 1")
	second := w.server()
	if second.PID == first.PID {
		t.Error("the older one is still there")
	}
	w.self = old
	w.expect("43\n", "exec", "--session", "work", "--python", "x + 2")
	if third := w.server(); third.PID != second.PID {
		t.Error("an older caller replaced a newer server")
	}
}

func TestTwentyFirstUsesStartOneServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			cmd := w.command("exec", "--session", "work", "--python", "n = globals().get('n', 0) + 1")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	w.expect("20\n", "exec", "--session", "work", "--python", "n")
	log, err := os.ReadFile(filepath.Join(w.data, "recluse", "server", "server.log"))
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(log, []byte(`"msg":"listening"`)); n != 1 {
		t.Errorf("%d servers started: %s", n, log)
	}
	if n := len(w.sandboxes()); n != 1 {
		t.Errorf("%d sandboxes", n)
	}
}

// serveByHand runs recluse serve and waits until it listens.
func (w *world) serveByHand(args ...string) (*exec.Cmd, *heard) {
	w.t.Helper()
	cmd := w.command(append([]string{"serve"}, args...)...)
	errs := newHeard()
	cmd.Stderr = errs
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_ = cmd.Wait()
		}
	})
	errs.await(w.t, `"msg":"listening"`)
	return cmd, errs
}

func TestServeTakesOverAndIsNeverReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.must("exec", "--session", "work", "--python", "x = 41")
	first := w.server()
	if !first.Background {
		t.Errorf("%+v", first)
	}
	cmd, errs := w.serveByHand("--listen", "127.0.0.1:0")
	w.expect("42\n", "exec", "--session", "work", "--python", "x + 1")
	second := w.server()
	if second.PID != cmd.Process.Pid || second.Background {
		t.Errorf("found %+v, want the one started by hand, %d", second, cmd.Process.Pid)
	}
	// A second server is refused, with the pid of the first.
	if got := w.run("", "serve"); got.status != 125 || !strings.Contains(got.stderr, "pid "+strconv.Itoa(second.PID)) {
		t.Errorf("%+v", got)
	}
	// It exits after SIGTERM, and the session stays.
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := status(t, cmd.Wait()); got != 143 && got != 0 {
		t.Errorf("status %d: %s", got, errs)
	}
	w.expect("43\n", "exec", "--session", "work", "--python", "x + 2")
	if third := w.server(); !third.Background || third.PID == second.PID {
		t.Errorf("%+v", third)
	}
}

func TestServeRefusesToListenForOthersWithoutAKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if got := w.run("", "serve", "--listen", "0.0.0.0:0"); got.status != 125 || !strings.Contains(got.stderr, "recluse key create") {
		t.Errorf("%+v", got)
	}
	for _, args := range [][]string{{"--listen", "nonsense"}, {"--tls-cert", "x"}, {"--tls-cert", "/no", "--tls-key", "/no"}} {
		if got := w.run("", append([]string{"serve"}, args...)...); got.status != 125 {
			t.Errorf("%v: %+v", args, got)
		}
	}
}

func TestServerEndsByItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "RECLUSE_SERVER_IDLE_EXIT=1s")
	w.must("exec", "--session", "work", "--python", "x = 41")
	first := w.server()
	w.must("session", "hibernate", "work")
	w.await("it leaves", func() bool { return syscall.Kill(first.PID, 0) != nil })
	w.expect("42\n", "exec", "--session", "work", "--python", "x + 1")
}
