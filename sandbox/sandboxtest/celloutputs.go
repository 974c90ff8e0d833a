package sandboxtest

import (
	"fmt"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// cellOutputs are the features of the output and the displays of cells.
var cellOutputs = []feature{
	{"results and displays are rich", overHTTP, func(t *testing.T, s *suite) {
		sb := s.python(t)
		var live []sandbox.Bundle
		v := runCell(t, sb, sandbox.Cell{Display: func(b sandbox.Bundle) { live = append(live, b) }, Code: `
class Rich:
    def _repr_html_(self): return "<b>rich</b>"
    def _repr_png_(self): return b"\x89PNG"
    def __repr__(self): return "plain"
display(Rich())
display("second")
{"a": [1, 2]}`})
		succeeded(t, v)
		same(t, "displays", len(v.Displays), 2)
		same(t, "html", v.Displays[0].Format("text/html"), "<b>rich</b>")
		same(t, "png", v.Displays[0].Format("image/png"), "iVBORw==")
		same(t, "text", v.Displays[0].Text(), "plain")
		same(t, "shown while it ran", len(live), 2)
		same(t, "json", strings.ReplaceAll(string(v.Result.Data["application/json"]), " ", ""), `{"a":[1,2]}`)
	}},
	{"more displays than are kept are counted", inGuest, func(t *testing.T, s *suite) {
		v := okCell(t, s.python(t), "for i in range(1000): display(i)\n'the result'")
		same(t, "all of them", len(v.Displays)+v.DisplaysDropped, 1000)
		same(t, "the result", v.Result.Text(), "'the result'")
	}},
	{"a traceback points at the user's lines", overHTTP, func(t *testing.T, s *suite) {
		sb := s.python(t)
		okCell(t, sb, "def helper(x):\n    # a comment\n    return 1 / x")
		v := cell(t, sb, "y = 1\n\nhelper(0)\n")
		if v.Error == nil {
			t.Fatal("no error")
		}
		same(t, "name", v.Error.Name, "ZeroDivisionError")
		same(t, "value", v.Error.Value, "division by zero")
		same(t, "line", v.Error.Line, 3)
		contains(t, "the traceback", v.Error.Traceback, "helper(0)")
		contains(t, "the traceback", v.Error.Traceback, "return 1 / x")
		if strings.Contains(v.Error.Traceback, "<recluse>") {
			t.Errorf("the traceback shows our own lines:\n%s", v.Error.Traceback)
		}
		v = cell(t, sb, "ok = 1\nif True\n    pass")
		same(t, "name", v.Error.Name, "SyntaxError")
		same(t, "line", v.Error.Line, 2)
		same(t, "nothing of it ran", okCell(t, sb, "'ok' in globals()").Result.Text(), "False")
	}},
	{"stdout and stderr come in order and while the cell runs", overHTTP, func(t *testing.T, s *suite) {
		sb := s.python(t)
		var both recorder
		done := inBackground(t.Context(), sb.Cell, sandbox.Cell{RunOptions: sandbox.RunOptions{Stdout: &both, Stderr: &both}, Code: `
import sys, time, os
for i in range(20):
    print("out", i)
    print("err", i, file=sys.stderr)
print("waiting")
while not os.path.exists("go"): time.sleep(0.01)
print("over", end="")`})
		both.await(t, "waiting\n")
		var want strings.Builder
		for i := range 20 {
			fmt.Fprintf(&want, "out %d\nerr %d\n", i, i)
		}
		same(t, "what came while it ran", both.String(), want.String()+"waiting\n")
		shell(t, sb, "touch go")
		v := verdictOf(t, done)
		succeeded(t, v)
		contains(t, "stdout", v.Stdout.String(), "waiting\nover")
	}},
	{"what children and C code write stands where it was written", inGuest, func(t *testing.T, s *suite) {
		v := okCell(t, s.python(t), `
import os, subprocess
for i in range(10):
    print("python", i)
    subprocess.run(["echo", "child", str(i)])
    os.write(1, b"raw %d\n" % i)`)
		var want strings.Builder
		for i := range 10 {
			fmt.Fprintf(&want, "python %d\nchild %d\nraw %d\n", i, i, i)
		}
		same(t, "stdout", v.Stdout.String(), want.String())
	}},
	{"output of a cell is exact and bounded", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb := s.python(t)
		v := okCell(t, sb, `import sys; n = sys.stdout.buffer.write(bytes(range(256)))`)
		var want []byte
		for i := range 256 {
			want = append(want, byte(i))
		}
		same(t, "stdout", string(v.Stdout.Head), string(want))
		v = okCell(t, sb, "for i in range(50000): print('a line of some length', i)")
		if v.Stdout.Cut() <= 0 || v.Stdout.Kept() > v1.DefaultInlineBytes || !strings.HasSuffix(string(v.Stdout.Tail), "49999\n") {
			t.Errorf("produced %d, kept %d", v.Stdout.Produced, v.Stdout.Kept())
		}
		info, err := files(sb, "").Stat(t.Context(), v.Stdout.File)
		noError(t, err)
		same(t, "size of the file", info.Size, v.Stdout.Produced)
	}},
}
