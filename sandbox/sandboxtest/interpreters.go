package sandboxtest

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// interpreters are the features of interpreters and their state: ends, interrupts, contexts.
var interpreters = []feature{
	{"exit is told as an exit, and state stays", overHTTP, func(t *testing.T, s *suite) {
		sb := s.python(t)
		for code, want := range map[string]int{"import sys; keep = 1; sys.exit(7)": 7, "exit()": 0, "raise SystemExit('sorry')": 1} {
			v := cell(t, sb, code)
			same(t, code+": ended", v.Ended, v1.EndedExit)
			same(t, code+": exit code", v.ExitCode, want)
			same(t, code+": state kept", v.StateKept, true)
			same(t, code+": error", v.Error == nil, true)
		}
		same(t, "state", okCell(t, sb, "keep").Result.Text(), "1")
	}},
	{"an interpreter that dies is told as what it died of, and the next one is fresh", onBackend | overHTTP, func(t *testing.T, s *suite) {
		cases := map[string]func(t *testing.T){}
		for _, c := range []struct {
			name, code string
			ended      sandbox.Ending
			exit       int
			signal     syscall.Signal
		}{
			{"os._exit", "import os; print('before', flush=True); os._exit(9)", v1.EndedExit, 9, 0},
			{"a segmentation fault", "print('before', flush=True); import ctypes; ctypes.string_at(0)", v1.EndedSignal, -1, syscall.SIGSEGV},
			{"abort", "import os; print('before', flush=True); os.abort()", v1.EndedSignal, -1, syscall.SIGABRT},
			{"its own kill", "import os; print('before', flush=True); os.kill(os.getpid(), 9)", v1.EndedSignal, -1, syscall.SIGKILL},
			{"exec of another program", "import os; print('before', flush=True); os.execvp('sh', ['sh', '-c', 'exit 5'])", v1.EndedExit, 5, 0},
		} {
			cases[c.name] = func(t *testing.T) {
				sb := s.python(t)
				okCell(t, sb, "x = 1")
				v := cell(t, sb, c.code)
				same(t, "ended", v.Ended, c.ended)
				same(t, "exit code", v.ExitCode, c.exit)
				same(t, "signal", v.Signal, c.signal)
				same(t, "state kept", v.StateKept, false)
				same(t, "output before", v.Stdout.String(), "before\n")
				same(t, "the next cell", okCell(t, sb, "'x' in globals()").Result.Text(), "False")
			}
		}
		s.runConcurrently(t, cases)
	}},
	{"an interpreter that died between cells is replaced, and the next verdict tells it", inGuest, func(t *testing.T, s *suite) {
		sb := s.python(t)
		for name, die := range map[string]func(pid int){
			"by itself": func(int) { okCell(t, sb, "import threading\nthreading.Timer(0.3, lambda: os._exit(0)).start()") },
			"by a kill": func(pid int) { shell(t, sb, fmt.Sprintf("kill -9 %d", pid)) },
		} {
			t.Run(name, func(t *testing.T) {
				pid := numbers(t, okCell(t, sb, "import os\nx = 1\nos.getpid()").Result.Text())
				die(pid[0])
				testneed.Await(t, "the end of the interpreter", func() bool { return len(livingPIDs(t, sb, pid)) == 0 })
				v := okCell(t, sb, "print('ran')\n'x' in globals()")
				same(t, "stdout", v.Stdout.String(), "ran\n")
				same(t, "result", v.Result.Text(), "False")
				same(t, "state lost before", v.StateLostBefore, true)
				same(t, "state kept", v.StateKept, true)
				same(t, "state lost before, in the second verdict", okCell(t, sb, "1").StateLostBefore, false)
			})
		}
		t.Run("with a cell on its way", func(t *testing.T) {
			pid := numbers(t, okCell(t, sb, "import os\nos.getpid()").Result.Text())[0]
			// Only a stopped interpreter cannot read the cell.
			shell(t, sb, fmt.Sprintf("kill -STOP %d; until grep -q '^State:.T' /proc/%d/status; do sleep 0.01; done", pid, pid))
			done := inBackground(t.Context(), sb.Cell, sandbox.Cell{Code: "print('ran')", RunOptions: sandbox.RunOptions{ID: "late"}})
			testneed.Await(t, "the cell at the interpreter", func() bool {
				ops, err := sb.Operations(t.Context())
				noError(t, err)
				return ops[len(ops)-1].ID == "late" && ops[len(ops)-1].PID == pid
			})
			shell(t, sb, fmt.Sprintf("sleep 0.2; kill -9 %d", pid))
			v := verdictOf(t, done)
			succeeded(t, v)
			same(t, "stdout", v.Stdout.String(), "ran\n")
			same(t, "state lost before", v.StateLostBefore, true)
		})
		t.Run("with a cell that it has read and not begun", func(t *testing.T) {
			okCell(t, sb, "import os, sys\nsys.addaudithook(lambda event, args: event == 'compile' and os._exit(0))\npass")
			v := okCell(t, sb, "print('ran')\n6*7")
			same(t, "stdout", v.Stdout.String(), "ran\n")
			same(t, "result", v.Result.Text(), "42")
			same(t, "state lost before", v.StateLostBefore, true)
			same(t, "state kept", v.StateKept, true)
		})
	}},
	{"an interpreter that leaves before every cell is an error, not a success", inGuest, func(t *testing.T, s *suite) {
		sb := s.python(t, func(x *sandbox.Spec) { x.Env = map[string]string{"PYTHONPATH": "leave"} })
		shell(t, sb, `mkdir leave && echo '
import os, sys
sys.addaudithook(lambda event, args: event == "compile" and str(args[1]).startswith("<cell") and os._exit(0))' > leave/sitecustomize.py`)
		v, err := sb.Cell(t.Context(), sandbox.Cell{Code: "1", Context: "leave"})
		if err == nil {
			t.Fatalf("no error, but the verdict %s", v)
		}
		if !strings.Contains(err.Error(), "two interpreters died") {
			t.Errorf("unexpected error: %v", err)
		}
	}},
	{"a cell ends in time while its interpreter starts, and the start is not in vain", inGuest, func(t *testing.T, s *suite) {
		sb := s.python(t, func(x *sandbox.Spec) { x.Env = map[string]string{"PYTHONPATH": "slow"} })
		shell(t, sb, `mkdir slow && touch slow/wait && echo '
import os, time
open("slow/pids", "a").write("%d\n" % os.getpid())
while os.path.exists("slow/wait"): time.sleep(0.01)' > slow/sitecustomize.py`)
		began := time.Now()
		v := runCell(t, sb, sandbox.Cell{Code: "1", Context: "slow", RunOptions: sandbox.RunOptions{Timeout: 300 * time.Millisecond}})
		same(t, "ended", v.Ended, v1.EndedTimeout)
		ctx, cancel := context.WithCancel(t.Context())
		done := inBackground(ctx, sb.Cell, sandbox.Cell{Code: "1", Context: "slow"})
		pids := pidsIn(t, sb, "slow/pids", 1)
		cancel()
		if o := await(t, "the end of the cancelled cell", done); o.err == nil {
			same(t, "ended", o.v.Ended, v1.EndedCancelled)
		}
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("it took %s", took)
		}
		shell(t, sb, "rm slow/wait")
		v = runCell(t, sb, sandbox.Cell{Code: "import os\nos.getpid()", Context: "slow"})
		succeeded(t, v)
		same(t, "the interpreter", v.Result.Text(), fmt.Sprint(pids[0]))
		same(t, "interpreters started", len(pidsIn(t, sb, "slow/pids", 1)), 1)
	}},
	{"a context can be closed while a cell runs in it", overHTTP, func(t *testing.T, s *suite) {
		sb := s.python(t)
		okCell(t, sb, "x = 1")
		for name, code := range map[string]string{"a loop": "while True: pass", "a sleep": "import time\ntime.sleep(1000)", "a flood": "while True: print('x' * 1000)"} {
			t.Run(name, func(t *testing.T) {
				var out recorder
				done := inBackground(t.Context(), sb.Cell, sandbox.Cell{Context: "c", Code: "y = 1\nprint('ready', flush=True)\n" + code, RunOptions: sandbox.RunOptions{Stdout: &out}})
				out.await(t, "ready")
				next := inBackground(t.Context(), sb.Cell, sandbox.Cell{Context: "c", Code: "'y' in globals()", RunOptions: sandbox.RunOptions{ID: "next-" + strings.ReplaceAll(name, " ", "-")}})
				noError(t, sb.CloseContext(t.Context(), "c"))
				v := verdictOf(t, done)
				same(t, "ended", v.Ended, v1.EndedKilled)
				same(t, "signal", v.Signal, syscall.SIGKILL)
				same(t, "state kept", v.StateKept, false)
				v = verdictOf(t, next)
				succeeded(t, v)
				same(t, "the next cell", v.Result.Text(), "False")
				same(t, "state lost before", v.StateLostBefore, false)
			})
		}
		same(t, "another context", okCell(t, sb, "x").Result.Text(), "1")
	}},
	{"an interpreter that has died costs nothing more", inGuest, func(t *testing.T, s *suite) {
		sb := s.python(t)
		for range 3 {
			cell(t, sb, "import os; os._exit(1)")
		}
		okCell(t, sb, "import os")
		// The CPU time that the guest's processes, as seen from inside, use during one idle second.
		v := okCell(t, sb, `
import glob, time
def spent():
    total = {}
    for p in glob.glob("/proc/[0-9]*/stat"):
        try: f = open(p).read()
        except OSError: continue
        if "(recluse-guest)" in f or "(exe)" in f:
            w = f.rsplit(")", 1)[1].split()
            total[p] = int(w[11]) + int(w[12])
    return total
pid = os.getppid()
chain = []
while pid > 1:
    chain.append("/proc/%d/stat" % pid)
    pid = int(open(chain[-1]).read().rsplit(")", 1)[1].split()[1])
before = spent()
time.sleep(1)
after = spent()
sum(after[p] - before[p] for p in chain if p in before and p in after)`)
		if ticks := numbers(t, v.Result.Text()); ticks[0] > 20 {
			t.Errorf("the guest used %d hundredths of a second of CPU time in one idle second", ticks[0])
		}
	}},
	{"endless recursion is an exception", inGuest, func(t *testing.T, s *suite) {
		sb := s.python(t)
		v := cell(t, sb, "keep = 1\ndef f(): return f()\nf()")
		if v.Error == nil || v.Error.Name != "RecursionError" {
			t.Errorf("unexpected error: %s", explainError(v))
		}
		same(t, "state", okCell(t, sb, "keep").Result.Text(), "1")
	}},
	{"an interrupt keeps the state and the output so far", onBackend | overHTTP, func(t *testing.T, s *suite) {
		cases := map[string]func(t *testing.T){}
		for name, code := range map[string]string{
			"a loop":   "while True: pass",
			"a sleep":  "import time; time.sleep(1000)",
			"a child":  "import subprocess; subprocess.run(['sleep', '1000'])",
			"an await": "import asyncio; await asyncio.sleep(1000)",
			"a thread": "import threading; threading.Event().wait()",
		} {
			cases[name] = func(t *testing.T) {
				sb := s.python(t)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var out recorder
				done := inBackground(ctx, sb.Cell, sandbox.Cell{Code: "x = 42\nprint('ready')\n" + code, RunOptions: sandbox.RunOptions{Stdout: &out}})
				out.await(t, "ready")
				cancel()
				v := verdictOf(t, done)
				same(t, "ended", v.Ended, v1.EndedCancelled)
				same(t, "state kept", v.StateKept, true)
				same(t, "stdout", v.Stdout.String(), "ready\n")
				same(t, "state", okCell(t, sb, "x").Result.Text(), "42")
			}
		}
		s.runConcurrently(t, cases)
	}},
	{"a timeout interrupts, and then kills what does not listen", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb := s.python(t)
		okCell(t, sb, "1") // start the interpreter first, because the timeout includes its start
		v := runCell(t, sb, sandbox.Cell{Code: "x = 1\nwhile True: pass", RunOptions: sandbox.RunOptions{Timeout: 300 * time.Millisecond}})
		same(t, "ended", v.Ended, v1.EndedTimeout)
		same(t, "state kept", v.StateKept, true)
		same(t, "state", okCell(t, sb, "x").Result.Text(), "1")
		v = runCell(t, sb, sandbox.Cell{Code: "import time\ntry: time.sleep(1000)\nexcept KeyboardInterrupt: print('once')\nwhile True: pass", RunOptions: sandbox.RunOptions{Timeout: 300 * time.Millisecond}})
		same(t, "ended, one interrupt swallowed", v.Ended, v1.EndedTimeout)
		same(t, "state kept", v.StateKept, true)
		same(t, "stdout", v.Stdout.String(), "once\n")
		cases := map[string]func(t *testing.T){}
		for name, code := range map[string]string{
			"swallowing":  "import signal\nsignal.signal(signal.SIGINT, lambda *_: None)\nwhile True: pass",
			"ignoring":    "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
			"stopped":     "import os, signal\nsignal.signal(signal.SIGINT, lambda *_: None)\nos.kill(os.getpid(), signal.SIGSTOP)\nwhile True: pass",
			"stuck in C":  "import re\nre.match('(a+)+$', 'a' * 60 + 'b')",
			"in a thread": "import signal, threading\nsignal.signal(signal.SIGINT, lambda *_: None)\nt = threading.Thread(target=lambda: [None for _ in iter(int, 1)])\nt.start()\nt.join()",
		} {
			cases[name] = func(t *testing.T) {
				own := strings.ReplaceAll(name, " ", "-")
				succeeded(t, runCell(t, sb, sandbox.Cell{Code: "x = 1", Context: own}))
				began := time.Now()
				v := runCell(t, sb, sandbox.Cell{Code: code, Context: own, RunOptions: sandbox.RunOptions{Timeout: 300 * time.Millisecond, KillGrace: 300 * time.Millisecond}})
				same(t, "ended", v.Ended, v1.EndedTimeout)
				if took := time.Since(began); took > maxWait {
					t.Errorf("it took %s", took)
				}
				if name != "stuck in C" { // newer versions of re handle signals
					same(t, "state kept", v.StateKept, false)
				}
				if v.StateKept != (runCell(t, sb, sandbox.Cell{Code: "'x' in globals()", Context: own}).Result.Text() == "True") {
					t.Error("StateKept of the verdict is wrong")
				}
			}
		}
		s.runConcurrently(t, cases)
	}},
	{"a timeout ends what this cell started and nothing of earlier ones", inGuest, func(t *testing.T, s *suite) {
		sb := s.python(t)
		unharmed := bystander(t, sb)
		v := okCell(t, sb, "import subprocess\nold = subprocess.Popen(['setsid', 'sleep', '1000'])\nold.pid")
		if len(v.Survivors) != 1 || v.Survivors[0].Killed {
			t.Errorf("survivors of the first cell: %+v", v.Survivors)
		}
		old := numbers(t, v.Result.Text())
		v = runCell(t, sb, sandbox.Cell{RunOptions: sandbox.RunOptions{Timeout: time.Second}, Code: `
import os
p = subprocess.Popen(["sh", "-c", "trap '' TERM INT; setsid sh -c 'trap \"\" TERM INT; echo $$ >> pids; exec sleep 1000' & echo $$ >> pids; sleep 1000"])
p.wait()`})
		same(t, "ended", v.Ended, v1.EndedTimeout)
		same(t, "state kept", v.StateKept, true)
		if alive := livingPIDs(t, sb, pidsIn(t, sb, "pids", 2)); len(alive) > 0 {
			t.Errorf("processes %v of the cell that timed out still run", alive)
		}
		same(t, "of the first cell", len(livingPIDs(t, sb, old)), 1)
		unharmed()
		v = runCell(t, sb, sandbox.Cell{Code: "q = subprocess.Popen(['sleep', '1000']); q.pid", RunOptions: sandbox.RunOptions{KillSurvivors: true}})
		if len(v.Survivors) != 1 || !v.Survivors[0].Killed {
			t.Errorf("survivors, to be killed: %+v", v.Survivors)
		}
		same(t, "killed", len(livingPIDs(t, sb, numbers(t, v.Result.Text()))), 0)
		same(t, "of the first cell", len(livingPIDs(t, sb, old)), 1)
	}},
	{"contexts are interpreters of their own", overHTTP, func(t *testing.T, s *suite) {
		sb := s.python(t)
		for _, c := range []string{"", "one", "two"} {
			succeeded(t, runCell(t, sb, sandbox.Cell{Code: fmt.Sprintf("x = %q", c), Context: c}))
		}
		same(t, "x of one", runCell(t, sb, sandbox.Cell{Code: "x", Context: "one"}).Result.Text(), "'one'")
		list, err := sb.Contexts(t.Context())
		noError(t, err)
		same(t, "contexts", len(list), 3)
		runCell(t, sb, sandbox.Cell{Code: "import os; os._exit(1)", Context: "two"})
		same(t, "x of one", runCell(t, sb, sandbox.Cell{Code: "x", Context: "one"}).Result.Text(), "'one'")
		noError(t, sb.CloseContext(t.Context(), "one"))
		same(t, "x of one, closed", runCell(t, sb, sandbox.Cell{Code: "'x' in globals()", Context: "one"}).Result.Text(), "False")
		same(t, "x of the default", okCell(t, sb, "x").Result.Text(), "''")
		fails(t, "close an unknown context", sb.CloseContext(t.Context(), "nobody"), v1.CodeNotFound)
		_, err = sb.Cell(t.Context(), sandbox.Cell{Code: "1", Context: "../x"})
		fails(t, "a context like a path", err, v1.CodeInvalidRequest)
	}},
	{"cells of one context wait for each other, those of two do not", inGuest, func(t *testing.T, s *suite) {
		sb := s.python(t)
		okCell(t, sb, "import os, time\nlog = []")
		var out recorder
		first := inBackground(t.Context(), sb.Cell, sandbox.Cell{Code: "print('first', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\nlog.append(1)", RunOptions: sandbox.RunOptions{Stdout: &out}})
		out.await(t, "first")
		second := inBackground(t.Context(), sb.Cell, sandbox.Cell{Code: "log.append(2); log", RunOptions: sandbox.RunOptions{ID: "second"}})
		testneed.Await(t, "the second in the queue", func() bool {
			ops, err := sb.Operations(t.Context())
			noError(t, err)
			return len(ops) > 0 && ops[len(ops)-1].ID == "second"
		})
		succeeded(t, runCell(t, sb, sandbox.Cell{Code: "1", Context: "other"}))

		ctx, cancel := context.WithCancel(t.Context())
		third := inBackground(ctx, sb.Cell, sandbox.Cell{Code: "log.append(3)", RunOptions: sandbox.RunOptions{ID: "third"}})
		testneed.Await(t, "the third in the queue", func() bool {
			ops, err := sb.Operations(t.Context())
			noError(t, err)
			return ops[len(ops)-1].ID == "third"
		})
		cancel()
		v := verdictOf(t, third)
		same(t, "the third", v.Ended, v1.EndedCancelled)
		same(t, "its state", v.StateKept, true)
		v = runCell(t, sb, sandbox.Cell{Code: "log.append(4)", RunOptions: sandbox.RunOptions{Timeout: 50 * time.Millisecond}})
		same(t, "the fourth, which timed out in the queue", v.Ended, v1.EndedTimeout)
		shell(t, sb, "touch go")
		succeeded(t, verdictOf(t, first))
		same(t, "log", verdictOf(t, second).Result.Text(), "[1, 2]")
	}},
	{"a cell that forks does not confuse anybody", inGuest, func(t *testing.T, s *suite) {
		sb := s.python(t)
		v := okCell(t, sb, `
import os
pid = os.fork()
if pid == 0:
    print("child")
    os._exit(0)
os.waitpid(pid, 0)
print("parent")`)
		same(t, "stdout", v.Stdout.String(), "child\nparent\n")
		v = okCell(t, sb, "from multiprocessing import get_context\nwith get_context('fork').Pool(2) as p: r = p.map(abs, [-1, -2])\nr")
		same(t, "a pool", v.Result.Text(), "[1, 2]")
	}},
	{"a sandbox without Python runs commands all the same", onBackend, func(t *testing.T, s *suite) {
		if s.caps.Python {
			t.Skip("this backend has Python")
		}
		sb := s.open(t)
		_, err := sb.Cell(t.Context(), sandbox.Cell{Code: "1"})
		fails(t, "a cell", err, v1.CodeNoPython)
		succeeded(t, run(t, sb, sandbox.Command{Args: []string{"true"}}))
	}},
}
