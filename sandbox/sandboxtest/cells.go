package sandboxtest

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// cells are the features of the input and the result of cells.
var cells = []feature{
	{"state stays from cell to cell", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb := s.python(t)
		okCell(t, sb, "import math\nx = 41\ndef f(n):\n    return n + 1\nclass C:\n    pass")
		v := okCell(t, sb, "f(x) + int(math.pi) - 3")
		same(t, "result", v.Result.Text(), "42")
		same(t, "state kept", v.StateKept, true)
	}},
	{"state stays after an exception, also what was bound before it", inGuest, func(t *testing.T, s *suite) {
		sb := s.python(t)
		v := cell(t, sb, "a = 1\nb = 2\nraise ValueError('no')\nc = 3")
		same(t, "ended", v.Ended, v1.EndedExit)
		same(t, "exit code", v.ExitCode, 1)
		same(t, "state kept", v.StateKept, true)
		same(t, "result", okCell(t, sb, "(a, b, 'c' in globals())").Result.Text(), "(1, 2, False)")
	}},
	{"the value of a last expression is the result", inGuest, func(t *testing.T, s *suite) {
		sb := s.python(t)
		for code, want := range map[string]string{"1+1": "2", "x = 5": "", "None": "", "'a'\n": "'a'", "1;": "", "for i in range(3): i": "", "[1,\n2]": "[1, 2]"} {
			same(t, "result of "+code, okCell(t, sb, code).Result.Text(), want)
		}
	}},
	{"await works at the top level", inGuest, func(t *testing.T, s *suite) {
		sb := s.python(t)
		same(t, "result", okCell(t, sb, "import asyncio\nawait asyncio.sleep(0.01)\nx = await asyncio.sleep(0.01, 'slept')\nx").Result.Text(), "'slept'")
		same(t, "a loop is kept", okCell(t, sb, "await asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0, 2))").Result.Text(), "[1, 2]")
	}},
	{"code as long as it may be runs, and longer code is refused", overHTTP, func(t *testing.T, s *suite) {
		sb := s.python(t)
		okCell(t, sb, "x = 1")
		sized := func(n int) string {
			const head, tail = "x += 1\n#", "\nx"
			return head + strings.Repeat("-", n-len(head)-len(tail)) + tail
		}
		same(t, "result", okCell(t, sb, sized(v1.MaxCode)).Result.Text(), "2")
		for _, code := range []string{sized(v1.MaxCode + 1), sized(100_000_000)} {
			began := time.Now()
			v, err := sb.Cell(t.Context(), sandbox.Cell{Code: code})
			if took := time.Since(began); v1.CodeOf(err) != v1.CodeTooLarge || took > time.Second {
				t.Errorf("%d bytes, after %s: %v, %v", len(code), took, v, err)
			}
		}
		same(t, "what was kept", okCell(t, sb, "x").Result.Text(), "2")
	}},
	{"input reads what the caller gives", overHTTP, func(t *testing.T, s *suite) {
		sb := s.python(t)
		v := runCell(t, sb, sandbox.Cell{Code: "a = input('? ')\nimport sys\nrest = sys.stdin.read()\n(a, rest)", RunOptions: sandbox.RunOptions{Stdin: strings.NewReader("first\nsecond\nthird")}})
		succeeded(t, v)
		same(t, "result", v.Result.Text(), `('first', 'second\nthird')`)
		contains(t, "stdout", v.Stdout.String(), "? ")
		v = cell(t, sb, "input()")
		if v.Error == nil || v.Error.Name != "EOFError" {
			t.Errorf("without input: %s", explainError(v))
		}
		r, w := io.Pipe()
		var out recorder
		done := inBackground(t.Context(), sb.Cell, sandbox.Cell{Code: "while True:\n    try: print('got', input())\n    except EOFError: break", RunOptions: sandbox.RunOptions{Stdin: r, Stdout: &out}})
		for _, line := range []string{"one", "two"} {
			_, err := io.WriteString(w, line+"\n")
			noError(t, err)
			out.await(t, "got "+line)
		}
		noError(t, w.Close())
		succeeded(t, verdictOf(t, done))
		succeeded(t, runCell(t, sb, sandbox.Cell{Code: "1", RunOptions: sandbox.RunOptions{Stdin: strings.NewReader(strings.Repeat("never read ", 100_000))}}))
		same(t, "stdout of a child that reads the input", runCell(t, sb, sandbox.Cell{Code: "import subprocess; subprocess.run(['cat'])", RunOptions: sandbox.RunOptions{Stdin: strings.NewReader("through")}}).Stdout.String(), "through")
	}},
	{"what is printed is heard, also where no thread can be started", onBackend, func(t *testing.T, s *suite) {
		sb := s.python(t)
		okCell(t, sb, "import threading\ndef refuse(self): raise RuntimeError(\"can't start new thread\")\nstart, threading.Thread.start = threading.Thread.start, refuse")
		v := okCell(t, sb, "print('no end of line', end='')\nprint(' and one')")
		same(t, "stdout", v.Stdout.String(), "no end of line and one\n")
		v = okCell(t, sb, "threading.Thread.start = start\nprint('soon', end='')")
		same(t, "stdout, with threads", v.Stdout.String(), "soon")
	}},
	{"arguments and environment reach the cell", overHTTP, func(t *testing.T, s *suite) {
		v := runCell(t, s.python(t), sandbox.Cell{Code: "import sys, os\n(sys.argv, os.environ['K'])", Args: []string{"prog", "a b"}, RunOptions: sandbox.RunOptions{Env: map[string]string{"K": "v"}}})
		same(t, "result", v.Result.Text(), "(['prog', 'a b'], 'v')")
	}},
	{"an environment that no process can have is refused, and state stays", overHTTP, func(t *testing.T, s *suite) {
		sb := s.python(t)
		okCell(t, sb, "x = 41")
		for _, env := range []map[string]string{{"": "v"}, {"K=L": "v"}, {"K\x00L": "v"}, {"K": "v\x00w"}} {
			_, err := sb.Cell(t.Context(), sandbox.Cell{Code: "x", RunOptions: sandbox.RunOptions{Env: env}})
			fails(t, fmt.Sprintf("a cell with %q", env), err, v1.CodeInvalidRequest)
			_, err = sb.Run(t.Context(), sandbox.Command{Args: []string{"true"}, RunOptions: sandbox.RunOptions{Env: env}})
			fails(t, fmt.Sprintf("a command with %q", env), err, v1.CodeInvalidRequest)
		}
		same(t, "result", okCell(t, sb, "x + 1").Result.Text(), "42")
	}},
	{"code may be large", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb := s.python(t)
		v := runCell(t, sb, sandbox.Cell{Code: "x = '''" + strings.Repeat("0123456789abcdef", 5<<16) + "'''\nlen(x)"})
		succeeded(t, v)
		same(t, "result", v.Result.Text(), fmt.Sprint(5<<20))
		_, err := sb.Cell(t.Context(), sandbox.Cell{Code: strings.Repeat("#", v1.MaxCode+1)})
		fails(t, "code above the limit", err, v1.CodeTooLarge)
	}},
	{"code that is not text is an error of the code", overHTTP, func(t *testing.T, s *suite) {
		sb := s.python(t)
		for _, code := range []string{"x = '\xff\xfe'", "x = 1\x00", "\xef\xbb\xbfy = 1\nz = \xc3\x28"} {
			v := cell(t, sb, code)
			if v.Error == nil || v.Error.Name != "SyntaxError" {
				t.Errorf("%q: %s", code, explainError(v))
			}
			same(t, "state kept", v.StateKept, true)
		}
		okCell(t, sb, "")
		okCell(t, sb, "# only a comment")
		same(t, "result", okCell(t, sb, "'ä€😀' * 2").Result.Text(), "'ä€😀ä€😀'")
		same(t, "a surrogate", okCell(t, sb, `'\ud800'`).Result.Text() != "", true)
	}},
	{"the verdict of a cell is complete", onBackend | overHTTP, func(t *testing.T, s *suite) {
		sb := s.python(t)
		okCell(t, sb, "import time\nbegan = time.process_time()")
		before := time.Now()
		v := runCell(t, sb, sandbox.Cell{Code: "x = bytearray(30 << 20)\nwhile time.process_time() < began + 0.05: pass\nprint('hello')\n1/0", RunOptions: sandbox.RunOptions{ID: "mine", Metadata: map[string]string{"turn": "3"}}})
		same(t, "id", v.ID, "mine")
		same(t, "metadata", v.Metadata["turn"], "3")
		if took := time.Since(before); v.Wall <= 0 || v.Wall > took || v.CPU <= 0 || v.CPU > 4*took {
			t.Errorf("wall time %s, CPU time %s, but the call took %s", v.Wall, v.CPU, took)
		}
		if v.PeakMemory < 20<<20 {
			t.Errorf("peak memory %d", v.PeakMemory)
		}
		if d := v.Started.Sub(before).Abs(); d > 5*time.Second {
			t.Errorf("the start time differs by %s from the host's clock", d)
		}
		b, err := json.Marshal(v)
		noError(t, err)
		for _, part := range []string{`"id":"mine"`, `"ended":"exit"`, `"state_kept":true`, `"name":"ZeroDivisionError"`, `"text":"hello\n"`, `"status":1`} {
			contains(t, "as JSON", string(b), part)
		}
	}},
}
