//go:build linux

package python

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/recluse-dev/recluse/internal/guest/kernel"
	"github.com/recluse-dev/recluse/internal/testneed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// session drives a real Python over pipes, as the guest does.
type session struct {
	t    testing.TB
	cmd  *exec.Cmd
	in   *os.File
	out  *bufio.Reader
	fds  [2]*os.File
	page *kernel.Page
	next uint32
}

type ending struct {
	ID       uint32
	Status   string
	ExitCode *int `json:"exit_code"`
	Error    *struct {
		Name, Value, Traceback string
		Line                   *int
	}
	Result  bool
	Spawned int
}

type outcome struct {
	ending
	stdout, stderr string
	both           string // in order
	result         map[string]any
	displays       []map[string]any
}

func start(t testing.TB) *session {
	t.Helper()
	python := "/usr/bin/python3"
	if _, err := os.Stat(python); err != nil {
		testneed.Lacking(t, err)
	}
	pipe := func() (*os.File, *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		return r, w
	}
	s := &session{t: t, cmd: exec.Command(python, "-c", bootstrap)}
	inR, inW := pipe()
	outR, outW := pipe()
	r1, w1 := pipe()
	r2, w2 := pipe()
	s.cmd.Stdout, s.cmd.Stderr = w1, w2
	page, file, err := kernel.NewPage()
	if err != nil {
		t.Fatal(err)
	}
	s.cmd.ExtraFiles = []*os.File{inR, outW, file}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, f := range []*os.File{inR, outW, w1, w2, file} {
		f.Close()
	}
	s.page = page
	s.in, s.out, s.fds = inW, bufio.NewReader(outR), [2]*os.File{r1, r2}
	t.Cleanup(func() {
		s.cmd.Process.Kill()
		s.cmd.Wait()
		for _, f := range []*os.File{inW, outR, r1, r2} {
			f.Close()
		}
		page.Close()
	})
	s.in.Write(kernel.AppendFrame(nil, kernel.TypeSource, source))
	typ, p, err := kernel.ReadFrame(s.out, nil, 1<<20)
	if err != nil || typ != kernel.TypeHello {
		b := make([]byte, 4096)
		r2.SetReadDeadline(time.Now().Add(time.Second))
		n, _ := r2.Read(b)
		t.Fatalf("hello: %q %v: %s", typ, err, b[:n])
	}
	if !bytes.Contains(p, []byte(`"version"`)) {
		t.Fatalf("the hello is %s", p)
	}
	return s
}

func (s *session) execute(code string, header map[string]any) {
	s.next++
	h := map[string]any{"id": s.next}
	for k, v := range header {
		h[k] = v
	}
	b, _ := json.Marshal(h)
	frame := kernel.AppendFrame(nil, kernel.TypeExecute, binary.LittleEndian.AppendUint32(nil, uint32(len(b))), b, []byte(code))
	if _, err := s.in.Write(frame); err != nil {
		s.t.Fatal(err)
	}
}

func (s *session) await() outcome {
	s.t.Helper()
	var o outcome
	for {
		typ, p, err := kernel.ReadFrame(s.out, nil, 256<<20)
		if err != nil {
			s.t.Fatalf("the interpreter has ended: %v", err)
		}
		switch typ {
		case kernel.TypeOutput:
			text := string(p[5:])
			if p[4] == 1 {
				o.stdout += text
			} else {
				o.stderr += text
			}
			o.both += text
		case kernel.TypeDisplay:
			h, body, err := kernel.Header(p)
			if err != nil {
				s.t.Fatal(err)
			}
			var b struct{ Data map[string]any }
			if err := json.Unmarshal(body, &b); err != nil {
				s.t.Fatalf("%v in %s", err, body)
			}
			if bytes.Contains(h, []byte(`"result"`)) {
				o.result = b.Data
			} else {
				o.displays = append(o.displays, b.Data)
			}
		case kernel.TypeCall:
			h, body, _ := kernel.Header(p)
			var c struct {
				Call int
				Name string
			}
			json.Unmarshal(h, &c)
			r := fmt.Sprintf(`{"call":%d,"ok":true}`, c.Call)
			if c.Name == "fail" {
				r = fmt.Sprintf(`{"call":%d,"ok":false,"error":{"code":"nope","message":"it failed"}}`, c.Call)
			}
			if c.Name == "never" {
				continue
			}
			s.in.Write(kernel.AppendFrame(nil, kernel.TypeReply, binary.LittleEndian.AppendUint32(nil, uint32(len(r))), []byte(r), bytes.ToUpper(body)))
		case kernel.TypeEnd:
			if err := json.Unmarshal(p, &o.ending); err != nil {
				s.t.Fatal(err)
			}
			if o.ID != s.next {
				s.t.Fatalf("cell %d ended instead of %d", o.ID, s.next)
			}
			return o
		}
	}
}

func (s *session) run(code string) outcome {
	s.t.Helper()
	s.execute(code, nil)
	return s.await()
}

func (s *session) text(code string) string {
	s.t.Helper()
	o := s.run(code)
	if o.Status != "ok" {
		s.t.Fatalf("%s: %s: %+v", code, o.Status, o.Error)
	}
	t, _ := o.result["text/plain"].(string)
	return t
}

func TestCells(t *testing.T) {
	s := start(t)
	type row struct {
		name, code     string
		status, result string
		stdout, stderr string
		errName        string
		traceback      []string
		exit           int
	}
	rows := []row{
		{name: "the value of a last expression", code: "1+1", result: "2"},
		{name: "None is not a value", code: "None"},
		{name: "a semicolon hides the value", code: "5;"},
		{name: "state stays", code: "x = 41", result: ""},
		{name: "state is there", code: "x + 1", result: "42"},
		{name: "names before an exception stay", code: "y = 7\n1/0\ny = 8", status: "error", errName: "ZeroDivisionError", traceback: []string{`File "<cell`, "line 2", "1/0"}},
		{name: "names before an exception are there", code: "y", result: "7"},
		{name: "kernel frames are not shown", code: "def f():\n  raise ValueError('a')\nf()", status: "error", errName: "ValueError", traceback: []string{"in f", "line 3"}},
		{name: "chained exceptions", code: "try:\n  1/0\nexcept Exception as e:\n  raise KeyError('k') from e", status: "error", errName: "KeyError", traceback: []string{"ZeroDivisionError", "direct cause"}},
		{name: "syntax error", code: "a = = 2", status: "error", errName: "SyntaxError", traceback: []string{"^"}},
		{name: "exit with a code", code: "import sys; sys.exit(3)", status: "exit", exit: 3},
		{name: "exit with words", code: "exit('bye')", status: "exit", exit: 1, stderr: "bye\n"},
		{name: "state after exit", code: "x", result: "41"},
		{name: "recursion", code: "def r(): return r()\nr()", status: "error", errName: "RecursionError"},
		{name: "memory error", code: "raise MemoryError('big')", status: "error", errName: "MemoryError"},
		{name: "both streams in order", code: "import sys\nfor i in range(3):\n  print('o', i)\n  print('e', i, file=sys.stderr)", stdout: "o 0\no 1\no 2\n", stderr: "e 0\ne 1\ne 2\n"},
		{name: "top-level await", code: "import asyncio\nawait asyncio.sleep(0.01)\nz = await asyncio.sleep(0, 'slept')\nz", result: "'slept'"},
		{name: "async for and with", code: "async def g():\n  for i in range(3): yield i\n[i async for i in g()]", result: "[0, 1, 2]"},
		{name: "stdout replaced", code: "sys.stdout = None"},
		{name: "stdout is back", code: "print('back')", stdout: "back\n"},
		{name: "stdout closed", code: "sys.stdout.close(); print('still')", stdout: "still\n"},
		{name: "builtins deleted", code: "import builtins; del builtins.len; del builtins.print"},
		{name: "builtins are back", code: "len([1])", result: "1"},
		{name: "modules patched", code: "import json, os, struct, time\njson.dumps = os.write = time.monotonic = None\njson.JSONEncoder.encode = None"},
		{name: "the kernel does not mind", code: "'fine'", result: "'fine'"},
		{name: "undecodable bytes come out as they went in", code: `print('\udcff')`, stdout: "\xff\n"},
		{name: "lone surrogates", code: `print('\ud800')`, stdout: "\\ud800\n"},
		{name: "failing repr", code: "class B:\n  def __repr__(self): raise RuntimeError\nB()", result: "<B object whose repr failed: RuntimeError>"},
		{name: "no input", code: "input()", status: "error", errName: "EOFError"},
		{name: "NUL in code", code: "a\x00b", status: "error", errName: "SyntaxError"},
		{name: "invalid UTF-8 in code", code: "a = '\xff'", status: "error", errName: "SyntaxError"},
		{name: "main is main", code: "import __main__; __name__, __main__.x", result: "('__main__', 41)"},
		{name: "nothing of ours in the namespace", code: "[n for n in globals() if 'recluse' in n.lower() or n.startswith('_S')]", result: "[]"},
		{name: "future features stay", code: "from __future__ import annotations\ndef q(a: undefined_name): pass"},
		{name: "future features are there", code: "def q2(a: also_undefined): pass\nq2.__annotations__", result: "{'a': 'also_undefined'}"},
		{name: "a handler of one's own", code: "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN);"},
		{name: "underscore is the last value", code: "_ is not None", result: "True"},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			s.t = t
			o := s.run(r.code)
			want := r.status
			if want == "" {
				want = "ok"
			}
			if o.Status != want {
				t.Fatalf("status %s, want %s: %+v", o.Status, want, o.Error)
			}
			if got, _ := o.result["text/plain"].(string); got != r.result {
				t.Errorf("result %q, want %q", got, r.result)
			}
			if o.stdout != r.stdout || o.stderr != r.stderr {
				t.Errorf("stdout %q stderr %q, want %q %q", o.stdout, o.stderr, r.stdout, r.stderr)
			}
			if r.errName != "" && (o.Error == nil || o.Error.Name != r.errName) {
				t.Fatalf("error %+v, want %s", o.Error, r.errName)
			}
			for _, piece := range r.traceback {
				if !strings.Contains(o.Error.Traceback, piece) {
					t.Errorf("traceback lacks %q:\n%s", piece, o.Error.Traceback)
				}
			}
			if o.Error != nil && strings.Contains(o.Error.Traceback, "<recluse>") {
				t.Errorf("our own frames are in the traceback:\n%s", o.Error.Traceback)
			}
			if r.status == "exit" && (o.ExitCode == nil || *o.ExitCode != r.exit) {
				t.Errorf("exit code %v, want %d", o.ExitCode, r.exit)
			}
		})
	}
}

func TestStderrAndStdoutKeepTheirOrder(t *testing.T) {
	s := start(t)
	o := s.run("import sys\nfor i in range(50):\n  print(i, end=' ', file=[sys.stdout, sys.stderr][i % 2])")
	want := ""
	for i := range 50 {
		want += fmt.Sprint(i, " ")
	}
	if o.both != want {
		t.Fatalf("%q", o.both)
	}
}

func TestOutputIsStreamed(t *testing.T) {
	s := start(t)
	s.execute("import time\nprint('soon', end='')\ntime.sleep(30)", nil)
	got := make(chan byte, 1)
	go func() {
		typ, _, _ := kernel.ReadFrame(s.out, nil, 1<<20)
		got <- typ
	}()
	select {
	case typ := <-got:
		if typ != kernel.TypeOutput {
			t.Fatalf("frame %q", typ)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("no output while the cell ran")
	}
}

func TestAnInterruptKeepsState(t *testing.T) {
	s := start(t)
	s.run("n = 1")
	for _, code := range []string{
		"while True: pass",
		"import time\ntime.sleep(60)",
		"import asyncio\nawait asyncio.sleep(60)",
		"import recluse\nrecluse.call('never')",
		"while True: print('x')",
	} {
		s.execute("n += 1\nprint('go', flush=True)\n"+code, nil)
		if typ, _, err := kernel.ReadFrame(s.out, nil, 1<<20); err != nil || typ != kernel.TypeOutput {
			t.Fatalf("%q %v", typ, err)
		}
		time.AfterFunc(100*time.Millisecond, func() { s.cmd.Process.Signal(syscall.SIGINT) })
		if o := s.await(); o.Status != "interrupted" {
			t.Fatalf("%s: %s", code, o.Status)
		}
	}
	if got := s.text("n"); got != "6" {
		t.Fatalf("n is %s", got)
	}
}

func TestInterruptsAroundTheEndOfACellDoNoHarm(t *testing.T) {
	s := start(t)
	s.run("n = 0")
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				s.cmd.Process.Signal(syscall.SIGINT)
				time.Sleep(300 * time.Microsecond)
			}
		}
	}()
	for range 300 {
		s.run("n += 1\nprint(n)\nn")
	}
	close(stop)
	<-done
	time.Sleep(10 * time.Millisecond)
	if o := s.run("'alive'"); o.Status != "ok" {
		t.Fatalf("%+v", o)
	}
}

func TestAForkedChildDoesNotBecomeASecondKernel(t *testing.T) {
	s := start(t)
	go io.Copy(io.Discard, s.fds[0])
	for _, code := range []string{
		"import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)",
		"import os\npid = os.fork()\nif not pid: raise RuntimeError('in the child')\nos.waitpid(pid, 0)",
		"import multiprocessing as m\nm.set_start_method('fork', force=True)\ndef f(q): print('child'); q.put(5)\nq = m.Queue()\np = m.Process(target=f, args=(q,)); p.start(); v = q.get(); p.join()",
	} {
		if o := s.run(code); o.Status != "ok" {
			t.Fatalf("%s: %+v", code, o.Error)
		}
	}
	if got := s.text("v"); got != "5" {
		t.Fatal(got)
	}
}

func TestCallsToTheHost(t *testing.T) {
	s := start(t)
	if got := s.text("import recluse\nrecluse.call('upper', 'abc')"); got != "b'ABC'" {
		t.Fatal(got)
	}
	o := s.run("recluse.call('fail')")
	if o.Error == nil || o.Error.Name != "recluse.CallError" {
		t.Fatalf("%+v", o.Error)
	}
	got := s.text(`
import concurrent.futures as f
with f.ThreadPoolExecutor(8) as ex:
    r = list(ex.map(lambda i: recluse.call('upper', 'n%d' % i), range(40)))
r == [b'N%d' % i for i in range(40)]`)
	if got != "True" {
		t.Fatal(got)
	}
}

func TestRichResults(t *testing.T) {
	s := start(t)
	o := s.run("class H:\n  def _repr_html_(self): return '<b>x</b>'\n  def _repr_png_(self): return b'\\x89PNG'\ndisplay(H())\nH()")
	if o.result["text/html"] != "<b>x</b>" || o.result["image/png"] != "iVBORw==" || len(o.displays) != 1 {
		t.Fatalf("%+v", o)
	}
	o = s.run("{'a': [1, 2, None]}")
	if fmt.Sprint(o.result["application/json"]) != "map[a:[1 2 <nil>]]" {
		t.Fatalf("%+v", o.result)
	}
}

func TestPersonaliseRenewsSeeds(t *testing.T) {
	var seen []string
	for range 2 {
		s := start(t)
		s.run("import random; random.seed(1)")
		h := `{"reseed":true,"entropy":"00","env":{"A_NEW":"1"},"unset":["HOME"]}`
		s.in.Write(kernel.AppendFrame(nil, kernel.TypeRenew, binary.LittleEndian.AppendUint32(nil, uint32(len(h))), []byte(h)))
		if typ, _, err := kernel.ReadFrame(s.out, nil, 1<<20); err != nil || typ != kernel.TypeAck {
			t.Fatalf("%q %v", typ, err)
		}
		seen = append(seen, s.text("import os; random.random()"))
		if got := s.text("os.environ['A_NEW'], 'HOME' in os.environ"); got != "('1', False)" {
			t.Fatal(got)
		}
	}
	if seen[0] == seen[1] {
		t.Fatal("two copies draw the same random numbers")
	}
}

func TestLargeCodeAndOutput(t *testing.T) {
	s := start(t)
	code := "s = '" + strings.Repeat("a", 20<<20) + "'\nlen(s)"
	s.next++
	go s.in.Write(kernel.AppendFrame(nil, kernel.TypeExecute, []byte{8, 0, 0, 0}, []byte(`{"id":1}`), []byte(code)))
	if o := s.await(); o.result["text/plain"] != fmt.Sprint(20<<20) {
		t.Fatalf("%v", o.result)
	}
	o := s.run("print(s)")
	if len(o.stdout) != 20<<20+1 {
		t.Fatalf("%d bytes", len(o.stdout))
	}
}

func TestOutputBeforeTheEndOfTheProcessIsNotLost(t *testing.T) {
	for _, code := range []string{"import os\nos._exit(3)", "import os\nos.abort()", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "import ctypes\nctypes.string_at(0)"} {
		s := start(t)
		s.execute("for i in range(20): print('line', i)\n"+code, nil)
		var out string
		for {
			typ, p, err := kernel.ReadFrame(s.out, nil, 1<<20)
			if err != nil {
				break
			}
			if typ == kernel.TypeOutput {
				out += string(p[5:])
			}
		}
		if !strings.HasSuffix(out, "line 19\n") {
			t.Errorf("%q: the output ends with %q", code, out[max(0, len(out)-20):])
		}
	}
}

func TestIPythonsWordsWorkWhereItIs(t *testing.T) {
	if exec.Command("/usr/bin/python3", "-c", "import IPython").Run() != nil {
		testneed.Lacking(t, "python3-ipython is not installed")
	}
	s := start(t)
	s.run("x = 5")
	if o := s.run("%who_ls"); o.Status != "ok" || !strings.Contains(fmt.Sprint(o.result["text/plain"]), "'x'") {
		t.Fatalf("%+v %+v", o, o.Error)
	}
	if o := s.run("from IPython.display import display, HTML\ndisplay(HTML('<i>hi</i>'))"); len(o.displays) != 1 || o.displays[0]["text/html"] != "<i>hi</i>" {
		t.Fatalf("%+v %+v", o, o.Error)
	}
	if o := s.run("y = !echo one\ny[0]"); o.result["text/plain"] != "'one'" {
		t.Fatalf("%+v %+v", o, o.Error)
	}
	if o := s.run("exit(4)"); o.Status != "exit" || *o.ExitCode != 4 {
		t.Fatalf("%+v %+v", o, o.Error)
	}
	if got := s.text("x"); got != "5" {
		t.Fatal(got)
	}
}

func TestFiguresAreShown(t *testing.T) {
	if exec.Command("/usr/bin/python3", "-c", "import matplotlib").Run() != nil {
		testneed.Lacking(t, "python3-matplotlib is not installed")
	}
	s := start(t)
	o := s.run("import matplotlib.pyplot as plt\nplt.plot([1, 2, 4]);")
	if o.Status != "ok" || len(o.displays) != 1 || !strings.HasPrefix(fmt.Sprint(o.displays[0]["image/png"]), "iVBORw0KGgo") {
		t.Fatalf("%s %+v, %d displays", o.Status, o.Error, len(o.displays))
	}
}

func TestFiguresAndTablesAreDescribed(t *testing.T) {
	if exec.Command("/usr/bin/python3", "-c", "import matplotlib, pandas").Run() != nil {
		testneed.Lacking(t, "python3-matplotlib or python3-pandas is not installed")
	}
	s := start(t)
	const chart, table = "application/vnd.recluse.chart+json", "application/vnd.recluse.table+json"
	s.run("import matplotlib.pyplot as plt, pandas as pd")
	for _, tt := range []struct{ name, code, want string }{
		{"line", "plt.plot([1, 2], [3, 4], label='a'); plt.xlabel('time (s)')", `{"label":"a","points":[[1,3],[2,4]]} line s`},
		{"points", "plt.scatter([1], [float('nan')])", `{"label":"","points":[[null,null]]} scatter <nil>`},
		{"dates", "plt.plot([pd.Timestamp('2030-01-31')], [1])", `{"label":"","points":[["2030-01-31T00:00:00",1]]} line <nil>`},
		{"names", "plt.plot(['a'], [1])", `{"label":"","points":[["a",1]]} line <nil>`},
		{"bars", "plt.bar(['x'], [2], label='g')", `{"group":"g","label":"x","value":2} bar <nil>`},
		{"pie", "plt.pie([1, 3], labels=['u', 'v'])", `{"angle":90,"label":"u","radius":1} pie <nil>`},
		{
			"boxes", "plt.boxplot([[1, 2, 3, 4, 20]])",
			`{"first_quartile":2,"label":"1","max":4,"median":3,"min":1,"outliers":[20],"third_quartile":4} box_and_whisker <nil>`,
		},
		{
			"sub-plots", "f, ax = plt.subplots(1, 2); ax[0].pie([1]); ax[1].pie([1])",
			`{"elements":[{"angle":360,"label":"","radius":1}],"title":null,"type":"pie"} superchart <nil>`,
		},
	} {
		o := s.run(tt.code + ";")
		if o.Status != "ok" || len(o.displays) != 1 {
			t.Errorf("%s: %s %+v, %d displays", tt.name, o.Status, o.Error, len(o.displays))
			continue
		}
		c, _ := o.displays[0][chart].(map[string]any)
		elements, _ := c["elements"].([]any)
		if len(elements) == 0 {
			t.Errorf("%s: %v", tt.name, c)
			continue
		}
		first, _ := json.Marshal(elements[0])
		if got := fmt.Sprintf("%s %v %v", first, c["type"], c["x_unit"]); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	o := s.run("pd.DataFrame({'a': [1, 2.5], 's': ['x', None]})")
	if got, _ := json.Marshal(o.result[table]); string(got) != `{"a":[1,2.5],"s":["x",null]}` {
		t.Errorf("%s", got)
	}
}

func BenchmarkCell(b *testing.B) {
	s := start(b)
	for b.Loop() {
		s.run("1+1")
	}
}

func TestThePageTellsWhichCellWasBegun(t *testing.T) {
	s := start(t)
	s.run("x = 1")
	if got := s.page.Begun(); got != s.next {
		t.Errorf("cell %d was begun, the page has %d", s.next, got)
	}
	s.run("x =")
	if got := s.page.Begun(); got != s.next-1 {
		t.Errorf("cell %d cannot be parsed, but the page has %d", s.next, got)
	}
	s.run("import os\nif os.fork() == 0: os._exit(0)\nos.wait()")
	if got := s.page.Begun(); got != s.next {
		t.Errorf("cell %d was begun, the page has %d", s.next, got)
	}
	if o := s.run("open('/dev/null').fileno()"); o.result["text/plain"] != "3" {
		t.Errorf("the first file of ordinary code is %v", o.result)
	}
}
