package attack

import (
	"context"
	"io"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// mark is an argument that identifies the processes of an attack.
const mark = "31415.9"

// leftBehind counts the living processes of the attack.
func leftBehind(t *testing.T, sb *sandbox.Sandbox) int {
	t.Helper()
	out := strings.TrimSpace(py(t, sb, `
import os
def _line(p):
    try: return open('/proc/%s/cmdline' % p, 'rb').read()
    except OSError: return b''
print(sum(_line(p).endswith(b'\0`+mark+`\0') for p in os.listdir('/proc') if p.isdigit()))`))
	n, err := strconv.Atoi(out)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestTimeouts(t *testing.T) {
	testneed.Parallel(t)
	sb := fresh(t, small())
	for _, a := range []struct{ name, script string }{
		{"trapped SIGTERM", `trap '' TERM INT HUP QUIT; while :; do sleep 0.1; done`},
		{"SIGSTOP to itself", `kill -STOP $$; sleep ` + mark},
		{"setsid and double fork", `(setsid sh -c 'setsid sleep ` + mark + ` & sleep ` + mark + `' & ) ; sleep ` + mark},
		{"grandchild that holds stdout", `sh -c 'sleep ` + mark + ` & exit' ; sleep ` + mark},
		{"everything blocked", `exec python3 -c "
import os, signal, subprocess
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
if os.fork() == 0: os.setsid()
os.fork()
subprocess.run(['sleep', '` + mark + `'])"`},
		{"stopped children", `for i in 1 2 3; do sleep ` + mark + ` & kill -STOP $!; done; wait`},
		{"processes that fork on and on", `exec python3 -c "
import os, time
while True:
    if os.fork(): os._exit(0)
    os.setsid()"; sleep ` + mark},
		{"one that renames itself", `exec -a '(x) R 1 1' sleep ` + mark},
	} {
		t.Run(a.name, func(t *testing.T) {
			siege(t, sb, func() {
				began := time.Now()
				v := run(t, sb, sandbox.Command{Shell: a.script, RunOptions: sandbox.RunOptions{Timeout: 700 * time.Millisecond}})
				took := time.Since(began)
				// The attack that forks repeatedly ends its main process by itself.
				if v.Ended != v1.EndedTimeout && !strings.Contains(a.name, "on and on") {
					t.Errorf("ended by %s", v)
				}
				if took > 8*time.Second {
					t.Errorf("the verdict came after %s", took)
				}
				if n := leftBehind(t, sb); n > 0 && v.Ended == v1.EndedTimeout {
					t.Errorf("%d processes are left", n)
				}
			})
		})
	}
}

func TestCellTimeouts(t *testing.T) {
	testneed.Parallel(t)
	sb := fresh(t, small())
	for _, a := range []struct {
		name, code string
		kept       bool
	}{
		{"plain loop", "while True: pass", true},
		{"swallowed interrupts", "while True:\n    try:\n        while True: pass\n    except BaseException: pass", false},
		{"ignored SIGINT", "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass", false},
		{"stopped by itself", "import os, signal, time\nos.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(1000)", true},
		{"catastrophic regular expression", "import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')", false},
		{"a huge power", "x = 9 ** 9 ** 9", false},
		{"stopped threads", "import threading, time\nfor i in range(20): threading.Thread(target=time.sleep, args=(10000,)).start()\ntime.sleep(10000)", true},
	} {
		t.Run(a.name, func(t *testing.T) {
			underSiege(t, sb, func() {
				began := time.Now()
				v := cell(t, sb, sandbox.Cell{Code: a.code, RunOptions: sandbox.RunOptions{Timeout: 500 * time.Millisecond, KillGrace: time.Second}})
				if took := time.Since(began); took > 8*time.Second {
					t.Errorf("the verdict came after %s", took)
				}
				t.Logf("%s, state kept %v", v, v.StateKept)
				if v.Ended != v1.EndedTimeout {
					t.Errorf("ended by %s", v)
				}
				if a.kept && !v.StateKept {
					t.Error("the state was lost")
				}
			})
			if got := py(t, sb, "print('next')"); got != "next\n" {
				t.Errorf("the next cell printed %q", got)
			}
		})
	}
}

// TestInterpreterTurnsHostile violates the protocol between interpreter and guest, from the side of the interpreter.
func TestInterpreterTurnsHostile(t *testing.T) {
	testneed.Parallel(t)
	for _, a := range []struct{ name, code string }{
		{"closes every descriptor", "import os\nos.closerange(0, 4096)"},
		{"writes noise to every descriptor", "import os\nfor fd in range(3, 64):\n    try: os.set_blocking(fd, False); os.write(fd, b'\\xff' * 100000)\n    except OSError: pass"},
		{"writes a frame of 4 GB", "import os, struct\nfor fd in range(3, 16):\n    try: os.write(fd, struct.pack('<IB', 0xffffffff, 1) + b'x' * 1000)\n    except OSError: pass"},
		{"becomes another program", "import os\nos.execv('/bin/sleep', ['sleep', '1000'])"},
		{"becomes a liar", "import os\nos.execv('/bin/sh', ['sh', '-c', 'yes >&4 & yes >&3 & yes >&5; wait'])"},
		{"segmentation fault", "import ctypes\nctypes.string_at(0)"},
		{"abort", "import os\nos.abort()"},
		{"endless recursion in C", "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()"},
		{"exits without a word", "import os\nos._exit(7)"},
		{"replaces what the kernel uses", "import builtins, sys, os, json, struct, signal\nfor m in (json, struct, signal):\n    for n in list(vars(m)):\n        if not n.startswith('__'):\n            try: setattr(m, n, None)\n            except Exception: pass\nsys.stdout = sys.stderr = None\nbuiltins.print = None"},
		{"deletes the builtins", "import builtins\nfor n in list(vars(builtins)):\n    if not n.startswith('__'): delattr(builtins, n)"},
	} {
		t.Run(a.name, func(t *testing.T) {
			sb := fresh(t, small())
			underSiege(t, sb, func() {
				v := cell(t, sb, sandbox.Cell{Code: a.code, RunOptions: sandbox.RunOptions{Timeout: 3 * time.Second, KillGrace: 500 * time.Millisecond}})
				t.Logf("%s, state kept %v, %v", v, v.StateKept, v.Error)
			})
			// Another context is not affected, and the same context must work again, with a new interpreter if
			// necessary.
			if v := cell(t, sb, sandbox.Cell{Code: "1+1", Context: "other"}); v.Result.Text() != "2" {
				t.Errorf("another context: %s", v)
			}
			v := cell(t, sb, sandbox.Cell{Code: "1+1", RunOptions: sandbox.RunOptions{Timeout: 5 * time.Second}})
			if v.Result.Text() != "2" {
				t.Logf("the same context: %s", v)
				if err := sb.CloseContext(t.Context(), "default"); err != nil && v1.CodeOf(err) != v1.CodeNotFound {
					t.Errorf("close: %v", err)
				}
				if v := cell(t, sb, sandbox.Cell{Code: "1+1"}); v.Result.Text() != "2" {
					t.Errorf("the same context, closed and opened: %s", v)
				}
			}
		})
	}
}

func TestStdinThatIsNeverRead(t *testing.T) {
	sb := shared(t)
	endless := func() io.Reader { return io.LimitReader(zeros{}, 1<<30) }
	siege(t, sb, func() {
		v := run(t, sb, sandbox.Command{Args: []string{"sleep", "1000"}, RunOptions: sandbox.RunOptions{Stdin: endless(), Timeout: time.Second}})
		if v.Ended != v1.EndedTimeout {
			t.Errorf("ended by %s", v)
		}
		v = run(t, sb, sandbox.Command{Args: []string{"true"}, RunOptions: sandbox.RunOptions{Stdin: endless(), Timeout: 5 * time.Second}})
		if !v.OK() {
			t.Errorf("ended by %s", v)
		}
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestTimeoutRacesExit runs commands that end at their timeout: each verdict reports one of both, and nothing is left.
func TestTimeoutRacesExit(t *testing.T) {
	sb := shared(t)
	siege(t, sb, func() {
		for i := range 15 {
			v := run(t, sb, sandbox.Command{Shell: "sleep 0.05", RunOptions: sandbox.RunOptions{Timeout: time.Duration(35+3*i) * time.Millisecond}})
			if v.Ended != v1.EndedTimeout && !v.OK() {
				t.Errorf("ended by %s", v)
			}
		}
	})
}

// TestSignalToWhatHasEnded is about the reuse of PIDs, and of nannies, which happens at once: a signal for an ended
// command must not hit the process that has its place now.
func TestSignalToWhatHasEnded(t *testing.T) {
	testneed.Parallel(t)
	sb := fresh(t, small())
	reused := 0
	siege(t, sb, func() {
		for i := range 20 {
			first, err := sb.Start(t.Context(), sandbox.Command{Shell: "echo $PPID"})
			if err != nil {
				t.Fatal(err)
			}
			var calm func()
			if i%2 == 0 { // also while the command ends, which may end it
				calm = signalOnAndOn(t, sb, first)
			}
			was, err := sb.Follow(t.Context(), first, sandbox.FollowOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if calm == nil {
				calm = signalOnAndOn(t, sb, first)
			}
			next := run(t, sb, sandbox.Command{Shell: "echo $PPID; sleep 0.1 & wait; exit 42"})
			calm()
			if next.Ended != v1.EndedExit || next.ExitCode != 42 {
				t.Errorf("round %d: a signal for a command that has ended hit the next one: %s", i, next)
			}
			if was.Stdout.Produced > 0 && was.Stdout.String() == next.Stdout.String() {
				reused++
			}
			if err := sb.Signal(t.Context(), first, syscall.SIGKILL, sandbox.SignalOptions{}); v1.CodeOf(err) != v1.CodeNotFound {
				t.Errorf("a signal to what has ended: %v", err)
			}
			if err := sb.Cancel(t.Context(), first); err != nil {
				t.Errorf("a cancel of what has ended: %v", err)
			}
		}
	})
	if t.Logf("in %d rounds both had the same nanny", reused); reused == 0 {
		t.Error("no nanny was reused, so nothing was tested")
	}
}

// signalOnAndOn repeatedly kills an operation, its main process and its tree, until it is stopped.
func signalOnAndOn(t *testing.T, sb *sandbox.Sandbox, id string) (stop func()) {
	t.Helper()
	done := make(chan struct{})
	var wg sync.WaitGroup
	for _, tree := range []bool{false, true} {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if code := v1.CodeOf(sb.Signal(t.Context(), id, syscall.SIGKILL, sandbox.SignalOptions{Tree: tree})); code != "" && code != v1.CodeNotFound {
					t.Errorf("a signal that may come too late: %s", code)
				}
			}
		})
	}
	return func() { close(done); wg.Wait() }
}

func TestCancelOfAFlood(t *testing.T) {
	sb := shared(t)
	siege(t, sb, func() {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		v, err := sb.Run(ctx, sandbox.Command{Shell: "trap '' TERM; yes & yes >&2", RunOptions: sandbox.RunOptions{Stdout: io.Discard, Stderr: io.Discard}})
		if err != nil || v.Ended != v1.EndedCancelled {
			t.Errorf("%v, %v", v, err)
		}
	})
}
