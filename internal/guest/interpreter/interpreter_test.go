//go:build linux

package interpreter

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/recluse-dev/recluse/internal/guest/kernel"
	"github.com/recluse-dev/recluse/internal/guest/kernel/python"
	"github.com/recluse-dev/recluse/internal/guest/nanny"
	"github.com/recluse-dev/recluse/internal/guest/operation"
	"github.com/recluse-dev/recluse/internal/guest/user"
	"github.com/recluse-dev/recluse/internal/guest/wire"
	"github.com/recluse-dev/recluse/internal/testbin"
	"github.com/recluse-dev/recluse/internal/testneed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// nannies is one pool for all tests, because a pool treats every other child of its process as a stray.
var nannies = sync.OnceValues(func() (*nanny.Pool, error) {
	_, guest, err := testbin.Programs()
	if err != nil {
		return nil, err
	}
	return nanny.NewPool(guest.Path, nanny.Config{UID: -1}), nil
})

// harness has the parts of a guest that interpreters need.
type harness struct {
	*Contexts
	t   *testing.T
	ops *operation.Table
	ids int
	mu  sync.Mutex
}

func harnessed(t *testing.T, change func(*Config)) *harness {
	t.Helper()
	if (python.Kernel{}).Find() == "" {
		testneed.Lacking(t, errors.New("no Python"))
	}
	pool, err := nannies()
	if err != nil {
		t.Fatal(err)
	}
	h := &harness{t: t, ops: operation.NewTable(t.TempDir())}
	cfg := Config{
		Kernels: []kernel.Kernel{python.Kernel{}}, Nannies: pool, Operations: h.ops,
		Dir: t.TempDir(), State: t.TempDir(), User: user.User{UID: os.Getuid(), GID: os.Getgid()},
		Env: func() map[string]string { return map[string]string{"PATH": os.Getenv("PATH"), "OLD": "1"} },
		Call: func(_ *operation.Operation, name string, payload []byte) ([]byte, *wire.Error) {
			if name == "fail" {
				return nil, wire.Errorf("failed", "no")
			}
			return []byte(name + ":" + string(payload)), nil
		},
	}
	if change != nil {
		change(&cfg)
	}
	h.Contexts = New(cfg)
	t.Cleanup(func() {
		for _, c := range h.List().Contexts {
			_ = h.Close(c.Name)
		}
	})
	return h
}

// cell is a running cell.
type cell struct {
	op   *operation.Operation
	done chan struct{}
	v    *wire.Verdict
	bad  *wire.Error
}

func (h *harness) begin(c Cell) *cell {
	h.t.Helper()
	h.mu.Lock()
	h.ids++
	id := fmt.Sprintf("x%d", h.ids)
	h.mu.Unlock()
	if c.Context == "" {
		c.Context = DefaultContext
	}
	if c.Options == nil {
		c.Options = &wire.RunOptions{}
	}
	o, bad := h.ops.Add(operation.Request{ID: id, Kind: "cell", Context: c.Context, Inline: 1 << 20})
	if bad != nil {
		h.t.Fatal(bad)
	}
	run := &cell{op: o, done: make(chan struct{})}
	go func() {
		defer close(run.done)
		run.v, run.bad = h.Run(o, c)
		o.EndOutput()
		if run.bad != nil {
			o.Finish(&wire.Verdict{})
			return
		}
		o.Finish(run.v)
	}()
	return run
}

func (h *harness) wait(c *cell) *wire.Verdict {
	h.t.Helper()
	select {
	case <-c.done:
	case <-time.After(60 * time.Second):
		h.t.Fatal("the cell has not ended")
	}
	if c.bad != nil {
		h.t.Fatal(c.bad)
	}
	return c.v
}

func (h *harness) run(code string) *wire.Verdict {
	h.t.Helper()
	return h.wait(h.begin(Cell{Code: []byte(code)}))
}

// prints runs code and returns its output.
func (h *harness) prints(code string) string {
	h.t.Helper()
	v := h.run(code)
	if v.Ending != wire.Ending_ENDING_EXIT || v.ExitCode != 0 {
		h.t.Fatalf("%s: %v", code, v)
	}
	return string(v.Stdout.Head)
}

// await waits until the operation has produced some output.
func (h *harness) await(c *cell, text string) {
	h.t.Helper()
	buf := make([]byte, 1<<10)
	n, _ := c.op.Output(1).Read(h.t.Context(), buf, 0, true)
	if got := string(buf[:n]); !strings.HasPrefix(got, text) {
		h.t.Fatalf("%q", got)
	}
}

func TestStateStays(t *testing.T) {
	h := harnessed(t, nil)
	v := h.run("x = 41\nprint('out')\nimport sys; print('err', file=sys.stderr)\nx + 1")
	if v.Ending != wire.Ending_ENDING_EXIT || v.ExitCode != 0 || !v.StateKept || v.StateLostBefore || !v.HasResult || !strings.Contains(string(v.Displays[0]), "42") {
		t.Errorf("%v", v)
	}
	if string(v.Stdout.Head) != "out\n" || string(v.Stderr.Head) != "err\n" || v.PeakMemory == 0 {
		t.Errorf("%v", v)
	}
	if got := h.prints("print(x)"); got != "41\n" {
		t.Error(got)
	}
	v = h.wait(h.begin(Cell{Context: "other", Code: []byte("x")}))
	if v.ExitCode != 1 || v.CellError.GetName() != "NameError" || !v.StateKept {
		t.Errorf("another context: %v", v)
	}
	list := h.List().Contexts
	if len(list) != 2 || list[0].Language != "python" || !strings.HasPrefix(list[0].Version, "3.") || list[0].Busy || len(h.Mains()) != 2 {
		t.Errorf("%v", list)
	}
}

func TestAnInterpreterThatDiesBetweenCells(t *testing.T) {
	h := harnessed(t, nil)
	h.prints("import os, threading, time\nx = 1")
	dying := func() {
		i, _ := h.get(DefaultContext, Profile{}, nil)
		_ = syscall.Kill(i.pid, syscall.SIGKILL)
		for i.alive() {
			time.Sleep(time.Millisecond)
		}
	}
	dying()
	v := h.run("'x' in globals()")
	if !v.StateLostBefore || !v.StateKept || !strings.Contains(string(v.Displays[0]), "False") {
		t.Errorf("%v", v)
	}
	if v := h.run("1"); v.StateLostBefore {
		t.Error("the loss is reported twice")
	}
}

func TestCodeThatEndsItsInterpreter(t *testing.T) {
	for code, want := range map[string]*wire.Verdict{
		"import os; print('last'); os._exit(3)":              {Ending: wire.Ending_ENDING_EXIT, ExitCode: 3},
		"import os; print('last'); os.kill(os.getpid(), 9)":  {Ending: wire.Ending_ENDING_SIGNAL, ExitCode: -1, Signal: 9},
		"print('last'); import sys; sys.exit(4)":             {Ending: wire.Ending_ENDING_EXIT, ExitCode: 4, StateKept: true},
		"import os; print('last'); os.closerange(3, 100000)": {Ending: wire.Ending_ENDING_EXIT, ExitCode: 1},
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			h := harnessed(t, nil)
			v := h.run(code)
			if v.Ending != want.Ending || v.ExitCode != want.ExitCode || v.Signal != want.Signal || v.StateKept != want.StateKept {
				t.Errorf("%v", v)
			}
			if string(v.Stdout.Head) != "last\n" {
				t.Errorf("%q", v.Stdout.Head)
			}
			if got := h.prints("print(1)"); got != "1\n" {
				t.Error(got)
			}
		})
	}
}

func TestTimeouts(t *testing.T) {
	const grace = 2 * time.Second
	for code, kept := range map[string]bool{
		"while True: pass": true,
		"import time\ntry: time.sleep(100)\nexcept KeyboardInterrupt: pass\nwhile True: pass":             true,
		"import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\nwhile True: pass":      false,
		"import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\nwhile True: pass":                       true,
		"import subprocess\np = subprocess.Popen(['sleep', '100'])\np.wait()":                             true,
		"import os\npid = os.fork()\nif pid == 0:\n  while True: pass\nos.waitpid(pid, 0)\nwhile 1: pass": true,
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			h := harnessed(t, nil)
			h.prints("x = 7")
			v := h.wait(h.begin(Cell{Code: []byte(code), Options: &wire.RunOptions{TimeoutNs: int64(300 * time.Millisecond), GraceNs: int64(grace)}}))
			if v.Ending != wire.Ending_ENDING_TIMEOUT || v.StateKept != kept || v.ExitCode != -1 {
				t.Errorf("%v", v)
			}
			for _, p := range v.Survivors {
				if !p.Killed {
					t.Errorf("%v still runs", p)
				}
			}
			if got, want := h.prints("print('x' in globals())"), fmt.Sprintln(map[bool]string{true: "True", false: "False"}[kept]); got != want {
				t.Errorf("%q", got)
			}
		})
	}
}

func TestCellsTakeTurns(t *testing.T) {
	h := harnessed(t, nil)
	first := h.begin(Cell{Code: []byte("import os, time\nlog = []\nprint('begun', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\nlog.append(1)")})
	h.await(first, "begun")
	second := h.begin(Cell{Code: []byte("log.append(2)")})
	third := h.begin(Cell{Code: []byte("log.append(3)")})
	late := h.begin(Cell{Code: []byte("log.append(4)"), Options: &wire.RunOptions{TimeoutNs: int64(50 * time.Millisecond)}})
	third.op.End(wire.Ending_ENDING_CANCELLED)
	if v := h.wait(third); v.Ending != wire.Ending_ENDING_CANCELLED || !v.StateKept {
		t.Errorf("%v", v)
	}
	if v := h.wait(late); v.Ending != wire.Ending_ENDING_TIMEOUT || !v.StateKept {
		t.Errorf("%v", v)
	}
	if !h.List().Contexts[0].Busy {
		t.Error("the interpreter is busy")
	}
	if err := os.WriteFile(h.cfg.Dir+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h.wait(first)
	h.wait(second)
	if got := h.prints("print(log)"); got != "[1, 2]\n" {
		t.Error(got)
	}
}

func TestClosingAContextEndsItsCell(t *testing.T) {
	h := harnessed(t, nil)
	c := h.begin(Cell{Code: []byte("import time\nprint('begun', flush=True)\ntime.sleep(100)")})
	h.await(c, "begun")
	next := h.begin(Cell{Code: []byte("'time' in globals()")})
	if bad := h.Close(DefaultContext); bad != nil {
		t.Fatal(bad)
	}
	if v := h.wait(c); v.Ending != wire.Ending_ENDING_KILLED || v.StateKept {
		t.Errorf("%v", v)
	}
	if v := h.wait(next); v.StateLostBefore || !strings.Contains(string(v.Displays[0]), "False") {
		t.Errorf("the next cell must have a new interpreter and report no loss, because the context was closed: %v", v)
	}
	if bad := h.Close("none"); bad.GetCode() != "not_found" {
		t.Error(bad)
	}
}

func TestInputComesThroughAFIFO(t *testing.T) {
	h := harnessed(t, nil)
	inputs := make(chan *wire.Input, 4)
	inputs <- &wire.Input{Stdin: []byte("first\nsec")}
	inputs <- &wire.Input{Stdin: []byte("ond\n")}
	inputs <- &wire.Input{CloseStdin: true}
	closed := make(chan struct{})
	next := func() (*wire.Input, error) {
		select {
		case in := <-inputs:
			return in, nil
		case <-closed:
			return nil, io.EOF
		}
	}
	v := h.wait(h.begin(Cell{Code: []byte("import sys\nprint([input(), sys.stdin.read()])"), Options: &wire.RunOptions{Stdin: true}, Input: next}))
	if string(v.Stdout.Head) != "['first', 'second\\n']\n" {
		t.Errorf("%v", v)
	}
	c := h.begin(Cell{Code: []byte("print('begun', flush=True)\ninput()"), Options: &wire.RunOptions{Stdin: true}, Input: next})
	h.await(c, "begun")
	close(closed)
	if v := h.wait(c); v.Ending != wire.Ending_ENDING_CANCELLED || !v.StateKept {
		t.Errorf("after the host has gone: %v", v)
	}
	if left, err := os.ReadDir(h.cfg.State); err != nil || len(left) > 0 {
		t.Errorf("%v %v", left, err)
	}
}

func TestCallsToTheHost(t *testing.T) {
	h := harnessed(t, nil)
	if got := h.prints("import recluse\nprint(recluse.call('f', b'x'))"); got != "b'f:x'\n" {
		t.Error(got)
	}
	v := h.run("import recluse\nrecluse.call('fail', b'')")
	if !strings.Contains(v.CellError.GetName(), "CallError") {
		t.Errorf("%v", v)
	}
}

func TestTheCallQueueIsBounded(t *testing.T) {
	var q callQueue
	release, ran := make(chan struct{}), make(chan struct{}, maxCalls+maxWaiting)
	call := func() {
		<-release
		ran <- struct{}{}
	}
	for n := range maxCalls + maxWaiting {
		if !q.add(1, call) {
			t.Fatalf("call %d was refused", n)
		}
	}
	if q.add(1, call) {
		t.Error("a call over the limit was accepted")
	}
	close(release)
	for range maxCalls + maxWaiting {
		<-ran
	}
	for {
		q.mu.Lock()
		idle := q.running == 0
		q.mu.Unlock()
		if idle {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if q.bytes != 0 || len(q.waiting) != 0 {
		t.Errorf("%d bytes of %d calls wait", q.bytes, len(q.waiting))
	}
	if !q.add(maxWaitingBytes+1, func() { ran <- struct{}{} }) {
		t.Error("a large call was refused although it need not wait")
	}
	<-ran
}

func TestACopyIsMadeItsOwnSelf(t *testing.T) {
	h := harnessed(t, nil)
	const look = "import os, random\nprint(random.getrandbits(64), os.environ.get('OLD'), os.environ.get('NEW'))"
	h.prints("import random; random.seed(1); state = random.getstate()")
	h.Adopt(map[string]string{"PATH": os.Getenv("PATH"), "NEW": "2"}, false)
	first := strings.Fields(h.prints(look))
	if first[1] != "1" || first[2] != "None" {
		t.Errorf("a live interpreter changed although the sandbox was not copied: %q", first)
	}
	h.prints("random.setstate(state)")
	h.Adopt(map[string]string{"PATH": os.Getenv("PATH"), "NEW": "3"}, true)
	second := strings.Fields(h.prints(look))
	if second[0] == first[0] || second[1] != "1" || second[2] != "3" {
		t.Errorf("%q, then %q", first, second)
	}
	h.Adopt(map[string]string{"PATH": os.Getenv("PATH")}, true)
	if third := strings.Fields(h.prints(look)); third[2] != "None" {
		t.Errorf("%q", third)
	}
}

func TestSurvivors(t *testing.T) {
	h := harnessed(t, nil)
	v := h.run("import subprocess\np = subprocess.Popen(['sleep', '100'])")
	if v.SurvivorsTotal != 1 || v.Survivors[0].Killed || !strings.Contains(v.Survivors[0].Command, "sleep") {
		t.Errorf("%v", v)
	}
	if v := h.run("1"); v.SurvivorsTotal != 0 {
		t.Errorf("a survivor is reported twice: %v", v)
	}
	v = h.wait(h.begin(Cell{Code: []byte("q = subprocess.Popen(['sleep', '100'])"), Options: &wire.RunOptions{KillSurvivors: true}}))
	if v.SurvivorsTotal != 1 || !v.Survivors[0].Killed {
		t.Errorf("%v", v)
	}
	if got := h.prints("print(p.poll(), q.wait())"); got != "None -9\n" {
		t.Error(got)
	}
}

func TestDisplaysAreBounded(t *testing.T) {
	h := harnessed(t, nil)
	v := h.run(fmt.Sprintf("from recluse import display\nfor i in range(%d): display(i)\n'the result'", maxDisplays+5))
	if len(v.Displays) != maxDisplays+1 || v.DisplaysDropped != 5 || !v.HasResult {
		t.Errorf("%d displays, %d dropped, a result: %t", len(v.Displays), v.DisplaysDropped, v.HasResult)
	}
}

func TestARehearsalLeavesNothingBehind(t *testing.T) {
	h := harnessed(t, nil)
	rehearsed, bad := h.Warm()
	if bad != nil || len(rehearsed.GetDisplays()) != 1 || rehearsed.HasResult {
		t.Fatal(rehearsed, bad)
	}
	i, _ := h.get(DefaultContext, Profile{}, nil)
	if i.seq != 0 || i.cells != 0 || len(h.ops.All()) != 0 {
		t.Errorf("seq %d, %d cells, %d operations", i.seq, i.cells, len(h.ops.All()))
	}
	if got := h.prints("print('_' in vars(__import__('builtins')), sorted(k for k in globals() if k[0] != '_'))"); got != "False []\n" {
		t.Error(got)
	}
	if v := h.run("1"); i.seq != 2 || v.StateLostBefore {
		t.Errorf("%v", v)
	}
}

func TestInvalidEnvironment(t *testing.T) {
	h := harnessed(t, nil)
	c := h.begin(Cell{Code: []byte("1"), Options: &wire.RunOptions{Env: [][]byte{[]byte("A=\xff")}}})
	<-c.done
	if c.bad.GetCode() != "invalid_request" {
		t.Errorf("%v", c.bad)
	}
	v := h.wait(h.begin(Cell{Code: []byte("import os; print(os.environ['A'])"), Options: &wire.RunOptions{Env: [][]byte{[]byte("A=b=c")}}}))
	if string(v.Stdout.Head) != "b=c\n" {
		t.Errorf("%v", v)
	}
}

func TestTraces(t *testing.T) {
	for name, c := range map[string]struct {
		env, metadata, want map[string]string
	}{
		"none":               {},
		"a trace":            {metadata: map[string]string{"traceparent": "p", "tracestate": "s"}, want: map[string]string{"TRACEPARENT": "p", "TRACESTATE": "s"}},
		"the caller's stays": {env: map[string]string{"TRACEPARENT": "x"}, metadata: map[string]string{"traceparent": "p"}},
		"a state alone":      {metadata: map[string]string{"tracestate": "s"}},
		"no text":            {metadata: map[string]string{"traceparent": "a\x00b"}, want: map[string]string{}},
	} {
		got := traceOf(c.env, c.metadata)
		if len(got) != len(c.want) || (got == nil) != (c.want == nil) || got["TRACEPARENT"] != c.want["TRACEPARENT"] || got["TRACESTATE"] != c.want["TRACESTATE"] {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// scripted is a kernel whose program a test sets.
type scripted struct {
	python.Kernel
	program, path string
}

func (s scripted) Language() string             { return "script" }
func (s scripted) Find() string                 { return s.path }
func (s scripted) Command(path string) []string { return []string{path, "-c", s.program} }

func TestKernelsThatDoNotStart(t *testing.T) {
	found := python.Kernel{}.Find()
	const hello = "import os\ndef frame(t, b): os.write(4, (len(b) + 1).to_bytes(4, 'little') + t + b)\n"
	for _, c := range []struct {
		name   string
		kernel scripted
		want   string
	}{
		{"none", scripted{}, "script not found in this sandbox"},
		{"no program", scripted{path: "/no/such/program"}, "did not start"}, // its nanny is reused by the next case
		{"it exits", scripted{path: found, program: "pass"}, "did not answer"},
		{"no hello", scripted{path: found, program: hello + "frame(b'E', b'{}')\nwhile os.read(3, 65536): pass"}, `frame of type 'E'`},
		{"no JSON", scripted{path: found, program: hello + "frame(b'H', b'!')"}, "did not answer"},
		{"too large", scripted{path: found, program: "import os\nos.write(4, b'\\xff\\xff\\xff\\xffH')\nos.read(0, 1)"}, "did not answer"},
		{"half a greeting", scripted{path: found, program: "import os\nos.write(4, b'\\x09\\0\\0\\0H')"}, "did not answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := harnessed(t, func(cfg *Config) { cfg.Kernels = []kernel.Kernel{c.kernel} })
			run := h.begin(Cell{Code: []byte("1")})
			<-run.done
			if run.bad.GetCode() != "no_script" || !strings.Contains(run.bad.GetMessage(), c.want) {
				t.Errorf("%v", run.bad)
			}
			if len(h.List().Contexts) != 0 {
				t.Error("the failed interpreter is listed")
			}
		})
	}
}

func TestFresh(t *testing.T) {
	i := &interpreter{known: map[nanny.Process]bool{}}
	i.remember([]nanny.Process{{PID: 1, Start: 10}, {PID: 2, Start: 11}})
	all := []nanny.Process{
		{PID: 1, Start: 10},          // survivor of an earlier cell
		{PID: 3, PPID: 1, Start: 20}, // its child
		{PID: 2, Start: 30},          // a new process with an old pid
		{PID: 4, PPID: 2, Start: 31}, // its child
		{PID: 5, PPID: 99, Start: 32},
	}
	var pids []int
	for _, p := range i.fresh(all) {
		pids = append(pids, p.PID)
	}
	if !slices.Equal(pids, []int{2, 4, 5}) {
		t.Errorf("%v", pids)
	}
}

// systemPython is the Python that every user of this machine can run.
type systemPython struct{ python.Kernel }

func (systemPython) Find() string { return "/usr/bin/python3" }

// another is a second language, whose code happens to be Python.
type another struct{ systemPython }

func (another) Language() string { return "another" }

func TestTheFirstCellDecidesTheLanguage(t *testing.T) {
	h := harnessed(t, func(cfg *Config) { cfg.Kernels = append(cfg.Kernels, another{}) })
	run := func(context, language string) string {
		c := h.begin(Cell{Context: context, Profile: Profile{Language: language}, Code: []byte("1")})
		<-c.done
		return c.bad.GetMessage()
	}
	for _, c := range []struct{ context, language, want string }{
		{"a", "ruby", `unknown language "ruby": this sandbox runs python, another`},
		{"a", "", ""},
		{"a", "python", ""},
		{"a", "another", `context "a" runs python, not another`},
		{"b", "another", ""},
		{"b", "", ""},
		{"b", "python", `context "b" runs another, not python`},
	} {
		if got := run(c.context, c.language); got != c.want {
			t.Errorf("%s in %s: %q", c.language, c.context, got)
		}
	}
	languages := map[string]string{}
	for _, c := range h.List().Contexts {
		languages[c.Name] = c.Language
	}
	if len(languages) != 2 || languages["a"] != "python" || languages["b"] != "another" {
		t.Errorf("%v", languages)
	}
	kill := h.begin(Cell{Context: "b", Code: []byte("import os; os._exit(1)")})
	h.wait(kill)
	if got := run("b", "python"); got == "" {
		t.Error("the profile of a context was lost with its interpreter")
	}
	if bad := h.Close("b"); bad != nil {
		t.Error(bad)
	}
	if got := run("b", "python"); got != "" {
		t.Errorf("a closed context still exists: %s", got)
	}
}

func TestTheFirstCellDecidesTheUser(t *testing.T) {
	testneed.Root(t, "running code as another user")
	h := harnessed(t, func(cfg *Config) {
		cfg.Kernels, cfg.Dir, cfg.SwitchUser = []kernel.Kernel{systemPython{}}, "/", true
		cfg.Env = func() map[string]string { return map[string]string{"HOME": "/nowhere"} }
	})
	const look = "import os; print(os.getuid(), os.getgid(), os.getgroups(), os.environ['HOME'], os.getcwd())\nopen('/dev/stderr', 'w').write('open\\n')"
	run := func(context string, u *user.User) string {
		c := h.begin(Cell{Context: context, Profile: Profile{User: u}, Code: []byte(look)})
		<-c.done
		if c.bad != nil {
			return c.bad.Code
		}
		return string(c.v.Stdout.Head) + string(c.v.Stderr.Head)
	}
	other, own := &user.User{UID: 2000, GID: 2001, Home: "/tmp"}, &user.User{UID: os.Getuid(), GID: os.Getgid()}
	mine := fmt.Sprintf("%d %d [] /nowhere /\nopen\n", own.UID, own.GID)
	const theirs = "2000 2001 [] /tmp /tmp\nopen\n"
	for _, c := range []struct {
		context string
		user    *user.User
		want    string
	}{
		{"a", nil, mine}, {"a", own, mine}, {"a", other, "invalid_request"}, {"b", other, theirs}, {"b", nil, theirs}, {"b", own, "invalid_request"},
	} {
		if got := run(c.context, c.user); got != c.want {
			t.Errorf("%v in %s: %q", c.user, c.context, got)
		}
	}
}
