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

// escape is a way in which processes try to outlive their command. The script writes the pids of all processes that it
// starts to the file pids, and does not end by itself.
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

// eachEscape runs a test for escapes, concurrently. On the local backend and in make test-all it tries all of them,
// otherwise only the last, which combines the others.
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
	s.runConcurrently(t, cases)
}

// bystander starts a command that the test must not affect. check reports a test error if it no longer runs.
func bystander(t *testing.T, sb Machine) (check func()) {
	t.Helper()
	id, err := sb.Start(t.Context(), sandbox.Command{Shell: "echo $$ > bystander; sleep 1000"})
	noError(t, err)
	pids := pidsIn(t, sb, "bystander", 1)
	return func() {
		t.Helper()
		if len(livingPIDs(t, sb, pids)) != 1 || !operation(t, sb, id).Running {
			t.Error("an unrelated command was ended")
		}
	}
}

var endings = []feature{
	{"a command runs though somebody has killed what was to look after it", inGuest, func(t *testing.T, s *suite) {
		sb := s.python(t)
		okCell(t, sb, "import os")
		for range 2 {
			nanny := strings.TrimSpace(shell(t, sb, "echo $PPID"))
			if v := cell(t, sb, "os.kill("+nanny+", 9)"); !v.OK() {
				t.Logf("code cannot kill the nanny here: %s", explainError(v)) // which is even better
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
			if took < time.Second || took > maxWait {
				t.Errorf("it took %s", took)
			}
			if alive := livingPIDs(t, sb, pidsIn(t, sb, "pids", e.pids)); len(alive) > 0 {
				t.Errorf("processes %v still run", alive)
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
			done := inBackground(ctx, sb.Run, sandbox.Command{Shell: "echo before; " + e.script, RunOptions: sandbox.RunOptions{KillGrace: 100 * time.Millisecond}})
			pids := pidsIn(t, sb, "pids", e.pids)
			cancel()
			v := verdictOf(t, done)
			same(t, "ended", v.Ended, v1.EndedCancelled)
			same(t, "status", v.Status(), 130)
			same(t, "output so far", v.Stdout.String(), "before\n")
			if alive := livingPIDs(t, sb, pids); len(alive) > 0 {
				t.Errorf("processes %v still run", alive)
			}
			unharmed()
		})
	}},
	{"a command has time to tidy up before it is killed", inGuest, func(t *testing.T, s *suite) {
		v := run(t, s.open(t), sandbox.Command{Shell: `trap 'echo tidied; exit 0' TERM; while :; do sleep 0.02; done`, RunOptions: sandbox.RunOptions{Timeout: 300 * time.Millisecond, KillGrace: 10 * time.Second}})
		same(t, "ended", v.Ended, v1.EndedTimeout)
		same(t, "stdout", v.Stdout.String(), "tidied\n")
		if v.Wall > 8*time.Second {
			t.Errorf("the command had ended, but the guest waited for the grace: %s", v.Wall)
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
		// The number of processes is bounded, because not every backend limits it.
		v := run(t, sb, sandbox.Command{
			Shell:      `echo $$ > pids; f() { [ $1 -gt 0 ] && { f $(($1-1)) & f $(($1-1)) & wait; }; trap '' TERM; sleep 1000; }; f 5`,
			RunOptions: sandbox.RunOptions{Timeout: 2 * time.Second, KillGrace: 50 * time.Millisecond},
		})
		same(t, "ended", v.Ended, v1.EndedTimeout)
		if n := strings.TrimSpace(shell(t, sb, `n=0; for p in /proc/[0-9]*; do grep -qs '^Name:.sleep' $p/status && grep -qsz "^PWD=$PWD$" $p/environ && n=$((n+1)); done; echo $n`)); n != "0" {
			t.Errorf("%s of the processes still run", n)
		}
	}},
	{"what a command leaves behind is listed and lives on", overHTTP, func(t *testing.T, s *suite) {
		sb := s.open(t)
		v := run(t, sb, sandbox.Command{Shell: `sleep 1234 & echo $! > pids; echo done`})
		succeeded(t, v)
		same(t, "stdout", v.Stdout.String(), "done\n")
		// The guest waits 200 ms for a process that holds stdout. The rest of the 5 s is for slow machines.
		if v.Wall > 5*time.Second {
			t.Errorf("the verdict waited %s for a process that holds stdout", v.Wall)
		}
		pids := pidsIn(t, sb, "pids", 1)
		same(t, "survivors", v.SurvivorsTotal, 1)
		if len(v.Survivors) != 1 || v.Survivors[0].PID != pids[0] || v.Survivors[0].Killed || !strings.Contains(v.Survivors[0].Command, "sleep 1234") {
			t.Errorf("survivors %+v, want %v, sleep 1234, alive", v.Survivors, pids)
		}
		same(t, "alive", len(livingPIDs(t, sb, pids)), 1)
		noError(t, sb.Signal(t.Context(), v.ID, syscall.SIGKILL, sandbox.SignalOptions{Tree: true}))
		testneed.Await(t, "the survivor's end", func() bool { return len(livingPIDs(t, sb, pids)) == 0 })
	}},
	{"what a survivor writes shortly after is kept too", inGuest, func(t *testing.T, s *suite) {
		sb := s.open(t)
		// A busy machine may wake the sleeper too late sometimes, but not every time.
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
		if alive := livingPIDs(t, sb, pidsIn(t, sb, "pids", 1)); len(alive) > 0 {
			t.Errorf("processes %v still run", alive)
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
			t.Skip("code here runs as another user and cannot signal a nanny")
		}
		sb := s.open(t)
		unharmed := bystander(t, sb)
		v := run(t, sb, sandbox.Command{Shell: `setsid sh -c 'echo $$ >> pids; exec sleep 1000' & echo $$ >> pids; kill -9 $PPID; sleep 1000`, RunOptions: sandbox.RunOptions{Timeout: 20 * time.Second}})
		same(t, "ended", v.Ended, v1.EndedSignal)
		same(t, "signal", v.Signal, syscall.SIGKILL)
		pids := pidsIn(t, sb, "pids", 1)
		testneed.Await(t, "the end of its tree", func() bool { return len(livingPIDs(t, sb, pids)) == 0 })
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
		s.runConcurrently(t, cases)
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
			runs = append(runs, inBackground(t.Context(), sb.Run, sandbox.Command{Shell: fmt.Sprintf("echo $$ >> pids; echo %d; trap '' TERM; sleep 1000 & wait; wait", i), RunOptions: sandbox.RunOptions{Timeout: 3 * time.Second, KillGrace: 50 * time.Millisecond}}))
		}
		for i, r := range runs {
			v := verdictOf(t, r)
			same(t, "ended", v.Ended, v1.EndedTimeout)
			same(t, "stdout", v.Stdout.String(), fmt.Sprintln(i))
		}
		if alive := livingPIDs(t, sb, slices.Compact(pidsIn(t, sb, "pids", 10))); len(alive) > 0 {
			t.Errorf("processes %v still run", alive)
		}
	}},
}

// warm uses some CPU time, so that there is some to count, and then prints "warm".
const warm = `import os, sys, time
while time.process_time() < 0.1: pass
print("warm", flush=True)
`

// since is the time at which a test began. Its methods check verdicts of later operations.
type since time.Time

// checkTimes checks the ending, the ID and the times of a verdict.
func (s since) checkTimes(t *testing.T, what string, v *sandbox.Verdict, ended sandbox.Ending) {
	t.Helper()
	same(t, what+": ended", v.Ended, ended)
	const off = 5 * time.Second // how much a sandbox's clock may differ
	if v.ID == "" || v.Wall <= 0 || v.Started.Before(time.Time(s).Add(-off)) || v.Started.Add(v.Wall).After(time.Now().Add(off)) {
		t.Errorf("%s: id %q, started %s, wall %s", what, v.ID, v.Started, v.Wall)
	}
}

// checkUsage is checkTimes that also checks CPU time and memory.
func (s since) checkUsage(t *testing.T, what string, v *sandbox.Verdict, ended sandbox.Ending) {
	t.Helper()
	s.checkTimes(t, what, v, ended)
	if v.CPU <= 0 || v.PeakMemory < 1<<20 {
		t.Errorf("%s: CPU %s, peak memory %d", what, v.CPU, v.PeakMemory)
	}
}

// completeCommands checks the verdicts of commands for every way to end.
func completeCommands(t *testing.T, s *suite, sb Machine) {
	t.Helper()
	began := since(time.Now())
	// A command that did not start has used no CPU time and no memory.
	began.checkTimes(t, "no start", run(t, sb, sandbox.Command{Args: []string{"/no/such/program"}}), v1.EndedStart)
	python := func(end string) sandbox.Command { return sandbox.Command{Args: []string{"python3", "-c", warm + end}} }
	began.checkUsage(t, "an exit", run(t, sb, python("sys.exit(3)")), v1.EndedExit)
	began.checkUsage(t, "a signal", run(t, sb, python("os.kill(os.getpid(), 11)")), v1.EndedSignal)
	began.checkUsage(t, "a timeout", run(t, sb, sandbox.Command{Shell: "while :; do :; done", RunOptions: sandbox.RunOptions{Timeout: 500 * time.Millisecond}}), v1.EndedTimeout)
	if s.caps.MemoryLimit {
		began.checkUsage(t, "memory", run(t, sb, python("x = []\nwhile True: x.append(bytearray(8 << 20))")), v1.EndedMemory)
	}
	// The test ends these commands after they have printed "warm".
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
		done := inBackground(ctx, sb.Run, command)
		out.await(t, "warm")
		c.end(cancel)
		began.checkUsage(t, c.id, verdictOf(t, done), c.ended)
	}
}

// completeCells is completeCommands for cells.
func completeCells(t *testing.T, s *suite, sb Machine) {
	t.Helper()
	began := since(time.Now())
	// An interpreter has already used CPU time, so the code measures from here.
	const spin = "import os, time\nbegan = time.process_time()\nwhile time.process_time() < began + 0.1: pass\nprint('warm', flush=True)\n"
	began.checkUsage(t, "a cell", okCell(t, sb, spin), v1.EndedExit)
	began.checkUsage(t, "an exception", cell(t, sb, spin+"1/0"), v1.EndedExit)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out recorder
	done := inBackground(ctx, sb.Cell, sandbox.Cell{Code: spin + "time.sleep(1000)", RunOptions: sandbox.RunOptions{Stdout: &out}})
	out.await(t, "warm")
	cancel()
	began.checkUsage(t, "a cell's cancel", verdictOf(t, done), v1.EndedCancelled)
	for _, c := range []struct{ name, code string }{
		{"a cell's timeout", "while True: pass"},
		{"a cell that will not end", "while True:\n  try:\n    while True: pass\n  except BaseException: pass"},
	} {
		began.checkUsage(t, c.name, runCell(t, sb, sandbox.Cell{Code: c.code, RunOptions: sandbox.RunOptions{Timeout: time.Second, KillGrace: 100 * time.Millisecond}}), v1.EndedTimeout)
	}
	// Each of these ends the interpreter.
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
		began.checkUsage(t, c.name, v, c.ended)
		same(t, c.name+": state kept", v.StateKept, false)
	}
}
