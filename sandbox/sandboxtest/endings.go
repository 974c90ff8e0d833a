package sandboxtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

// escape is a way in which a process tries to outlive its command. It writes the pids of all it starts to the file pids and then
// does not end by itself.
type escape struct {
	name, script string
	pids         int
}

var escapes = []escape{
	{"plain children", `for i in 1 2 3; do sh -c 'echo $$ >> pids; exec sleep 1000' & done; echo $$ >> pids; wait`, 4},
	{"a session of its own", `setsid sh -c 'echo $$ >> pids; exec sleep 1000' & echo $$ >> pids; sleep 1000`, 2},
	{"a double fork", `sh -c 'setsid sh -c "echo \$\$ >> pids; exec sleep 1000" </dev/null >/dev/null 2>&1 & exit 0'; echo $$ >> pids; sleep 1000`, 2},
	{"trapped signals", `trap '' TERM INT HUP QUIT; echo $$ >> pids; while :; do sleep 0.05; done`, 1},
	{"stopped processes", `sh -c 'echo $$ >> pids; kill -STOP $$; sleep 1000' & echo $$ >> pids; kill -STOP $$; sleep 1000`, 2},
	{"a grandchild that holds stdout", `sh -c 'trap "" TERM; sh -c "trap \"\" TERM; echo \$\$ >> pids; exec sleep 1000" & wait' & echo $$ >> pids; sleep 1000`, 2},
	{"all of it together", `trap '' TERM; sh -c 'setsid sh -c "trap \"\" TERM; echo \$\$ >> pids; kill -STOP \$\$; sleep 1000" & exit 0'; echo $$ >> pids; while :; do sleep 0.05; done`, 2},
}

// eachEscape tests escapes at once: all of them on the local backend and in make test-all, otherwise the one that combines them.
func (s *suite) eachEscape(t *testing.T, test func(t *testing.T, e escape)) {
	t.Helper()
	tried := escapes
	if !testneed.AllTests() && (s.caps.Isolation != sandbox.IsolationNone || s.opts.Scope == HTTPFeatures) {
		tried = escapes[len(escapes)-1:]
	}
	cases := map[string]func(t *testing.T){}
	for _, e := range tried {
		cases[e.name] = func(t *testing.T) { test(t, e) }
	}
	s.atOnce(t, cases)
}

// bystander is a command of before, which nothing here may touch.
func bystander(t *testing.T, sb Machine) (check func()) {
	t.Helper()
	id, err := sb.Start(t.Context(), sandbox.Command{Shell: "echo $$ > bystander; sleep 1000"})
	noError(t, err)
	pids := pidsIn(t, sb, "bystander", 1)
	return func() {
		t.Helper()
		if len(living(t, sb, pids)) != 1 || !operation(t, sb, id).Running {
			t.Error("a command that had nothing to do with it was ended too")
		}
	}
}

var endings = []feature{
	{"a command runs though somebody has killed what was to look after it", inGuest, func(t *testing.T, s *suite) {
		sb := s.python(t)
		okCell(t, sb, "import os")
		for range 2 {
			keeper := strings.TrimSpace(shell(t, sb, "echo $PPID"))
			if v := cell(t, sb, "os.kill("+keeper+", 9)"); !v.OK() {
				t.Logf("it cannot be killed here: %s", explainError(v)) // all the better
			}
			same(t, "the next command", shell(t, sb, "echo hello"), "hello\n")
		}
	}},
	{"a command with input that does not start leaves no trace in the next call", inGuest, func(t *testing.T, s *suite) {
		sb := s.open(t)
		for range 20 {
			v := run(t, sb, sandbox.Command{Args: []string{"/no/such/program"}, RunOptions: sandbox.RunOptions{Stdin: strings.NewReader(strings.Repeat("never read ", 10_000))}})
			same(t, "ended", v.Ended, v1.EndedStart)
			same(t, "the next command", shell(t, sb, "echo hello"), "hello\n")
		}
	}},
	{"a timeout ends everything the command started and nothing else", onBackend | overHTTP, func(t *testing.T, s *suite) {
		s.eachEscape(t, func(t *testing.T, e escape) {
			sb := s.open(t)
			unharmed := bystander(t, sb)
			began := time.Now()
			v := run(t, sb, sandbox.Command{Shell: "echo before; " + e.script, RunOptions: sandbox.RunOptions{Timeout: time.Second, KillGrace: 100 * time.Millisecond}})
			took := time.Since(began)
			same(t, "ended", v.Ended, v1.EndedTimeout)
			same(t, "exit code", v.ExitCode, -1)
			same(t, "status", v.Status(), 124)
			same(t, "output so far", v.Stdout.String(), "before\n")
			if took < time.Second || took > patience {
				t.Errorf("it took %s", took)
			}
			if alive := living(t, sb, pidsIn(t, sb, "pids", e.pids)); len(alive) > 0 {
				t.Errorf("%v live on", alive)
			}
			unharmed()
		})
	}},
	{"a cancel ends everything the command started and keeps the output so far", onBackend | overHTTP, func(t *testing.T, s *suite) {
		s.eachEscape(t, func(t *testing.T, e escape) {
			sb := s.open(t)
			unharmed := bystander(t, sb)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := beside(ctx, sb.Run, sandbox.Command{Shell: "echo before; " + e.script, RunOptions: sandbox.RunOptions{KillGrace: 100 * time.Millisecond}})
			pids := pidsIn(t, sb, "pids", e.pids)
			cancel()
			v := verdictOf(t, done)
			same(t, "ended", v.Ended, v1.EndedCancelled)
			same(t, "status", v.Status(), 130)
			same(t, "output so far", v.Stdout.String(), "before\n")
			if alive := living(t, sb, pids); len(alive) > 0 {
				t.Errorf("%v live on", alive)
			}
			unharmed()
		})
	}},
	{"a command has time to tidy up before it is killed", inGuest, func(t *testing.T, s *suite) {
		v := run(t, s.open(t), sandbox.Command{Shell: `trap 'echo tidied; exit 0' TERM; while :; do sleep 0.02; done`, RunOptions: sandbox.RunOptions{Timeout: 300 * time.Millisecond, KillGrace: 10 * time.Second}})
		same(t, "ended", v.Ended, v1.EndedTimeout)
		same(t, "stdout", v.Stdout.String(), "tidied\n")
		if v.Wall > 8*time.Second {
			t.Errorf("the grace was waited for although nothing was left: %s", v.Wall)
		}
	}},
	{"a command that spins is ended in time", inGuest, func(t *testing.T, s *suite) {
		v := run(t, s.open(t), sandbox.Command{Shell: `while :; do :; done`, RunOptions: sandbox.RunOptions{Timeout: 300 * time.Millisecond}})
		same(t, "ended", v.Ended, v1.EndedTimeout)
		if v.CPU <= 0 {
			t.Errorf("CPU time %s", v.CPU)
		}
	}},
	{"a fork storm is ended whole", onBackend, func(t *testing.T, s *suite) {
		sb := s.open(t)
		// Bounded, because not every backend has a limit of its own.
		v := run(t, sb, sandbox.Command{
			Shell:      `echo $$ > pids; f() { [ $1 -gt 0 ] && { f $(($1-1)) & f $(($1-1)) & wait; }; trap '' TERM; sleep 1000; }; f 5`,
			RunOptions: sandbox.RunOptions{Timeout: 2 * time.Second, KillGrace: 50 * time.Millisecond},
		})
		same(t, "ended", v.Ended, v1.EndedTimeout)
		if n := strings.TrimSpace(shell(t, sb, `n=0; for p in /proc/[0-9]*; do grep -qs '^Name:.sleep' $p/status && grep -qsz "^PWD=$PWD$" $p/environ && n=$((n+1)); done; echo $n`)); n != "0" {
			t.Errorf("%s of them live on", n)
		}
	}},
	{"what a command leaves behind is listed and lives on", overHTTP, func(t *testing.T, s *suite) {
		sb := s.open(t)
		v := run(t, sb, sandbox.Command{Shell: `sleep 1234 & echo $! > pids; echo done`})
		succeeded(t, v)
		same(t, "stdout", v.Stdout.String(), "done\n")
		if v.Wall > 5*time.Second { // of which 200 ms are for what holds stdout, and the rest for a slow machine
			t.Errorf("the verdict waited %s for a process that holds stdout", v.Wall)
		}
		pids := pidsIn(t, sb, "pids", 1)
		same(t, "survivors", v.SurvivorsTotal, 1)
		if len(v.Survivors) != 1 || v.Survivors[0].PID != pids[0] || v.Survivors[0].Killed || !strings.Contains(v.Survivors[0].Command, "sleep 1234") {
			t.Errorf("survivors %+v, want %v, sleep 1234, alive", v.Survivors, pids)
		}
		same(t, "alive", len(living(t, sb, pids)), 1)
		noError(t, sb.Signal(t.Context(), v.ID, syscall.SIGKILL, sandbox.SignalOptions{Tree: true}))
		testneed.Await(t, "the survivor's end", func() bool { return len(living(t, sb, pids)) == 0 })
	}},
	{"what a survivor writes shortly after is kept too", inGuest, func(t *testing.T, s *suite) {
		sb := s.open(t)
		// A machine that is busy may wake the sleeper too late, but not each time.
		testneed.Await(t, "a verdict that has the late output", func() bool {
			v := run(t, sb, sandbox.Command{Shell: `(sleep 0.05; echo late) & echo early`})
			succeeded(t, v)
			return v.Stdout.String() == "early\nlate\n"
		})
	}},
	{"survivors are killed on request", overHTTP, func(t *testing.T, s *suite) {
		sb := s.open(t)
		unharmed := bystander(t, sb)
		v := run(t, sb, sandbox.Command{Shell: `setsid sh -c 'trap "" TERM; echo $$ >> pids; exec sleep 1000' & until [ -s pids ]; do sleep 0.02; done; exit 7`, RunOptions: sandbox.RunOptions{KillSurvivors: true}})
		same(t, "ended", v.Ended, v1.EndedExit)
		same(t, "exit code", v.ExitCode, 7)
		if len(v.Survivors) != 1 || !v.Survivors[0].Killed {
			t.Errorf("survivors %+v, want one that was killed", v.Survivors)
		}
		if alive := living(t, sb, pidsIn(t, sb, "pids", 1)); len(alive) > 0 {
			t.Errorf("%v live on", alive)
		}
		unharmed()
	}},
	{"a timeout that races a natural end is one or the other", inGuest, func(t *testing.T, s *suite) {
		sb := s.open(t)
		for range 10 {
			v := run(t, sb, sandbox.Command{Shell: "sleep 0.1", RunOptions: sandbox.RunOptions{Timeout: 105 * time.Millisecond}})
			switch {
			case v.Ended == v1.EndedExit && v.ExitCode == 0:
			case v.Ended == v1.EndedTimeout && v.ExitCode == -1:
			default:
				t.Errorf("%s, exit code %d", v.Ended, v.ExitCode)
			}
		}
	}},
	{"a nanny that is killed ends its command and nothing more", onBackend, func(t *testing.T, s *suite) {
		if s.caps.Isolation != sandbox.IsolationNone {
			t.Skip("code in here cannot reach a nanny: it runs as somebody else")
		}
		sb := s.open(t)
		unharmed := bystander(t, sb)
		v := run(t, sb, sandbox.Command{Shell: `setsid sh -c 'echo $$ >> pids; exec sleep 1000' & echo $$ >> pids; kill -9 $PPID; sleep 1000`, RunOptions: sandbox.RunOptions{Timeout: 20 * time.Second}})
		same(t, "ended", v.Ended, v1.EndedSignal)
		same(t, "signal", v.Signal, syscall.SIGKILL)
		pids := pidsIn(t, sb, "pids", 1)
		testneed.Await(t, "the end of its tree", func() bool { return len(living(t, sb, pids)) == 0 })
		unharmed()
	}},
	{"a command may end the process group it is in", inGuest, func(t *testing.T, s *suite) {
		sb := s.open(t)
		v := run(t, sb, sandbox.Command{Shell: `kill -9 0; sleep 1000`})
		same(t, "ended", v.Ended, v1.EndedSignal)
		succeeded(t, run(t, sb, sandbox.Command{Args: []string{"true"}}))
	}},
	{"a verdict is complete however it ended", onBackend | overHTTP, func(t *testing.T, s *suite) {
		cases := map[string]func(t *testing.T){}
		for name, test := range map[string]func(*testing.T, *suite, Machine){"commands": completeCommands, "cells": completeCells} {
			cases[name] = func(t *testing.T) {
				test(t, s, s.python(t, func(x *sandbox.Spec) {
					if s.caps.MemoryLimit {
						x.Limits.Memory = 256 << 20
					}
				}))
			}
		}
		s.atOnce(t, cases)
	}},
	{"a command that reads its own output has its time all the same", inGuest, func(t *testing.T, s *suite) {
		sb := s.open(t)
		v := run(t, sb, sandbox.Command{Shell: `exec 3</proc/$$/fd/1 && (cat <&3 >/dev/null) & while :; do echo x; done`, RunOptions: sandbox.RunOptions{Timeout: 2 * time.Second, KillGrace: 50 * time.Millisecond}})
		same(t, "ended", v.Ended, v1.EndedTimeout)
		succeeded(t, run(t, sb, sandbox.Command{Args: []string{"true"}}))
	}},
	{"a signal to what looks after a command costs nothing", inGuest, func(t *testing.T, s *suite) {
		sb := s.open(t)
		v := run(t, sb, sandbox.Command{Shell: `for s in USR1 USR2 ALRM PIPE IO; do kill -$s $PPID 2>/dev/null; done; sleep 0.1; echo alive`})
		succeeded(t, v)
		same(t, "stdout", v.Stdout.String(), "alive\n")
	}},
	{"many timeouts at once", inGuest, func(t *testing.T, s *suite) {
		sb := s.open(t)
		var runs []<-chan outcome
		for i := range 10 {
			runs = append(runs, beside(t.Context(), sb.Run, sandbox.Command{Shell: fmt.Sprintf("echo $$ >> pids; echo %d; trap '' TERM; sleep 1000 & wait; wait", i), RunOptions: sandbox.RunOptions{Timeout: 3 * time.Second, KillGrace: 50 * time.Millisecond}}))
		}
		for i, r := range runs {
			v := verdictOf(t, r)
			same(t, "ended", v.Ended, v1.EndedTimeout)
			same(t, "stdout", v.Stdout.String(), fmt.Sprintln(i))
		}
		if alive := living(t, sb, slices.Compact(pidsIn(t, sb, "pids", 10))); len(alive) > 0 {
			t.Errorf("%v live on", alive)
		}
	}},
}

// warm uses some processor time, so that there is some to be counted, and says when.
const warm = `import os, sys, time
while time.process_time() < 0.1: pass
print("warm", flush=True)
`

// since is when the things began whose verdicts are looked at.
type since time.Time

// timed asks for the time of a verdict.
func (s since) timed(t *testing.T, what string, v *sandbox.Verdict, ended sandbox.Ending) {
	t.Helper()
	same(t, what+": ended", v.Ended, ended)
	const off = 5 * time.Second // what a sandbox's clock may be
	if v.ID == "" || v.Wall <= 0 || v.Started.Before(time.Time(s).Add(-off)) || v.Started.Add(v.Wall).After(time.Now().Add(off)) {
		t.Errorf("%s: id %q, started %s, wall %s", what, v.ID, v.Started, v.Wall)
	}
}

// whole asks for time, processor time and memory.
func (s since) whole(t *testing.T, what string, v *sandbox.Verdict, ended sandbox.Ending) {
	t.Helper()
	s.timed(t, what, v, ended)
	if v.CPU <= 0 || v.PeakMemory < 1<<20 {
		t.Errorf("%s: CPU %s, peak memory %d", what, v.CPU, v.PeakMemory)
	}
}

// completeCommands asks for a whole verdict on every way to end.
func completeCommands(t *testing.T, s *suite, sb Machine) {
	t.Helper()
	began := since(time.Now())
	began.timed(t, "no start", run(t, sb, sandbox.Command{Args: []string{"/no/such/program"}}), v1.EndedStart) // what never ran has used nothing
	python := func(end string) sandbox.Command { return sandbox.Command{Args: []string{"python3", "-c", warm + end}} }
	began.whole(t, "an exit", run(t, sb, python("sys.exit(3)")), v1.EndedExit)
	began.whole(t, "a signal", run(t, sb, python("os.kill(os.getpid(), 11)")), v1.EndedSignal)
	began.whole(t, "a timeout", run(t, sb, sandbox.Command{Shell: "while :; do :; done", RunOptions: sandbox.RunOptions{Timeout: 500 * time.Millisecond}}), v1.EndedTimeout)
	if s.caps.MemoryLimit {
		began.whole(t, "memory", run(t, sb, python("x = []\nwhile True: x.append(bytearray(8 << 20))")), v1.EndedMemory)
	}
	// These are ended from here, when they say that they are warm.
	for _, c := range []struct {
		id    string
		ended sandbox.Ending
		end   func(cancel func())
	}{
		{"cancel", v1.EndedCancelled, func(cancel func()) { cancel() }},
		{"kill", v1.EndedKilled, func(func()) {
			noError(t, sb.Signal(t.Context(), "kill", syscall.SIGKILL, sandbox.SignalOptions{Tree: true}))
		}},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var out recorder
		command := python("time.sleep(1000)")
		command.ID, command.Stdout = c.id, &out
		done := beside(ctx, sb.Run, command)
		out.await(t, "warm")
		c.end(cancel)
		began.whole(t, c.id, verdictOf(t, done), c.ended)
	}
}

// completeCells is completeCommands of cells.
func completeCells(t *testing.T, s *suite, sb Machine) {
	t.Helper()
	began := since(time.Now())
	// An interpreter has used some before.
	const spin = "import os, time\nbegan = time.process_time()\nwhile time.process_time() < began + 0.1: pass\nprint('warm', flush=True)\n"
	began.whole(t, "a cell", okCell(t, sb, spin), v1.EndedExit)
	began.whole(t, "an exception", cell(t, sb, spin+"1/0"), v1.EndedExit)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out recorder
	done := beside(ctx, sb.Cell, sandbox.Cell{Code: spin + "time.sleep(1000)", RunOptions: sandbox.RunOptions{Stdout: &out}})
	out.await(t, "warm")
	cancel()
	began.whole(t, "a cell's cancel", verdictOf(t, done), v1.EndedCancelled)
	for _, c := range []struct{ name, code string }{
		{"a cell's timeout", "while True: pass"},
		{"a cell that will not end", "while True:\n  try:\n    while True: pass\n  except BaseException: pass"},
	} {
		began.whole(t, c.name, runCell(t, sb, sandbox.Cell{Code: c.code, RunOptions: sandbox.RunOptions{Timeout: time.Second, KillGrace: 100 * time.Millisecond}}), v1.EndedTimeout)
	}
	// Each of these costs the interpreter.
	for _, c := range []struct {
		name, code string
		ended      sandbox.Ending
	}{
		{"a cell's memory", "x = []\nwhile True: x.append(bytearray(8 << 20))", v1.EndedMemory},
		{"a cell that leaves", "os._exit(3)", v1.EndedExit},
		{"a cell that crashes", "import ctypes\nctypes.string_at(0)", v1.EndedSignal},
	} {
		if c.ended == v1.EndedMemory && !s.caps.MemoryLimit {
			continue
		}
		v := cell(t, sb, spin+c.code)
		began.whole(t, c.name, v, c.ended)
		same(t, c.name+": state kept", v.StateKept, false)
	}
}
