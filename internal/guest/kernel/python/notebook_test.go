//go:build linux

package python

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestTasksLiveBetweenCells(t *testing.T) {
	s := start(t)
	if got := s.text("import asyncio\nasync def g(n=1):\n  await asyncio.sleep(0.01)\n  return n\nt = asyncio.create_task(g())\nawait t"); got != "1" {
		t.Errorf("a task that is awaited in the last line: %s", got)
	}
	if got := s.text("tasks = [asyncio.create_task(g(i)) for i in range(3)]\nawait asyncio.gather(*tasks)"); got != "[0, 1, 2]" {
		t.Errorf("gather: %s", got)
	}
	s.text("done = []\nasync def later():\n  await asyncio.sleep(0.05)\n  done.append('in the background')\nbg = asyncio.create_task(later());")
	deadline := time.Now().Add(20 * time.Second)
	for s.text("done") != "['in the background']" {
		if time.Now().After(deadline) {
			t.Fatal("a task does not continue between cells")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if got := s.text("bg.done(), asyncio.run(g(5)), asyncio.new_event_loop().run_until_complete(g(6))"); got != "(True, 5, 6)" {
		t.Errorf("event loops made by the code: %s", got)
	}
	if got := s.text("def begin(): return asyncio.create_task(g(7))\nu = begin()\nr = asyncio.get_event_loop().run_until_complete(u)\nr"); got != "7" {
		t.Errorf("the loop by hand: %s", got)
	}
	if got := s.text("async with asyncio.Lock():\n  v = await g(8)\nv"); got != "8" {
		t.Errorf("async with: %s", got)
	}
	for _, code := range []string{"g()\n1", "import gc; gc.collect()\n2", "g()", "3"} {
		if o := s.run(code); o.Status != "ok" || strings.Contains(o.stderr, "<recluse>") {
			t.Errorf("%q: %s, stderr %q", code, o.Status, o.stderr)
		}
	}
}

// A task that never yields must not prevent the interrupt of the next cell.
func TestABusyTaskGivesWayToAnInterrupt(t *testing.T) {
	s := start(t)
	s.text("import asyncio\nasync def spin():\n  await asyncio.sleep(0)\n  while True: pass\nt = asyncio.create_task(spin());")
	s.execute("'next'", nil)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
				s.cmd.Process.Signal(syscall.SIGINT)
			}
		}
	}()
	if o := s.await(); o.Status != "ok" && o.Status != "interrupted" {
		t.Errorf("%s %+v", o.Status, o.Error)
	}
}

func TestMagics(t *testing.T) {
	s := start(t)
	dir := t.TempDir()
	s.text(fmt.Sprintf("import os\nos.environ['RECLUSE_IPYTHON'] = '0'\nos.chdir(%q)\nhere = os.getcwd();", dir))
	for _, r := range []struct{ name, code, result, stdout, errName string }{
		{name: "cd", code: "%cd /tmp", stdout: "/tmp\n"},
		{name: "cd back, in a block", code: "if True:\n  %cd -", stdout: dir + "\n"},
		{name: "pwd", code: "%pwd", result: "'" + dir + "'"},
		{name: "pwd into a name", code: "p = %pwd\np == here", result: "True"},
		{name: "a command's output", code: "x = !echo a; echo b\nx", result: "['a', 'b']"},
		{name: "a command over two lines", code: "x = !echo a \\\n  b\nx.s", result: "'a b'"},
		{name: "a variable in a command", code: "word = 'w'\nx = !echo {word}-$word-${HOME:+home}-end\nx.s", result: "'w-w-home-end'"},
		{name: "env", code: "%env FOO=bar", stdout: "env: FOO=bar\n"},
		{name: "env of a name", code: "%env FOO", result: "'bar'"},
		{name: "writefile", code: "%%writefile m.py\nprint('from a file')\nq = 12", stdout: "Writing m.py\n"},
		{name: "ls", code: "%ls -a m* > listing\nopen('listing').read()", result: `'m.py\n'`},
		{name: "a stand-in for pip", code: "%%writefile pip.py\nimport sys\nopen('called', 'w').write(repr(sys.argv[1:]))\nsys.exit(len(sys.argv) == 2)", stdout: "Writing pip.py\n"},
		{name: "pip", code: "%pip install 'a b' {word}\nopen('called').read()", result: `"['install', 'a b', 'w']"`},
		{name: "run", code: "%run m.py", stdout: "from a file\n"},
		{name: "the names of a file that was run", code: "q", result: "12"},
		{name: "matplotlib", code: "import sys, types\nm = types.ModuleType('matplotlib'); m.use = lambda b: print('backend', b)\nsys.modules['matplotlib'] = m\n%matplotlib inline\ndel sys.modules['matplotlib']", stdout: "backend Agg\n"},
		{name: "a percent sign that is Python", code: "a = (7\n%4)\ntext = '''\n%cd /nowhere\n!ls\n'''\nhome = %pwd\na, len(text)", result: "(3, 18)"},
		{name: "help", code: "len?", stdout: "Signature: len(obj, /)\nType:      builtin_function_or_method\nDocstring:\nReturn the number of items in a container.\n"},
		{name: "an extension", code: "%load_ext autoreload\n%autoreload 2\n5", result: "5"},
		{name: "unknown", code: "%nosuch 1", errName: "UsageError"},
		{name: "unknown cell magic", code: "%%nosuch\n1", errName: "UsageError"},
		{name: "get_ipython", code: "get_ipython().run_line_magic('pwd', '') == here", result: "True"},
		{name: "who", code: "%reset\nzz = 1\n%who", stdout: "zz\n"},
		{name: "an ordinary mistake", code: "a = = 2", errName: "SyntaxError"},
	} {
		t.Run(r.name, func(t *testing.T) {
			s.t = t
			o := s.run(r.code)
			if r.errName != "" {
				if o.Error == nil || o.Error.Name != r.errName {
					t.Fatalf("error %+v, want %s", o.Error, r.errName)
				}
				if want := "UsageError: " + o.Error.Value + "\n"; r.errName == "UsageError" && o.Error.Traceback != want {
					t.Errorf("the traceback is %q, want %q", o.Error.Traceback, want)
				}
				if r.errName == "UsageError" && (strings.Contains(o.Error.Value, "\n") || !strings.Contains(o.Error.Value, "known: %")) {
					t.Errorf("%q is not one line with the known magics", o.Error.Value)
				}
				return
			}
			if o.Status != "ok" {
				t.Fatalf("%s: %+v", o.Status, o.Error)
			}
			if got, _ := o.result["text/plain"].(string); got != r.result {
				t.Errorf("result %q, want %q", got, r.result)
			}
			if o.stdout != r.stdout {
				t.Errorf("stdout %q, want %q", o.stdout, r.stdout)
			}
		})
	}
	if o := s.run("%time 1 + 1"); !strings.Contains(o.stdout, "Wall time: ") || o.result["text/plain"] != "2" {
		t.Errorf("time: %q %v", o.stdout, o.result)
	}
	if o := s.run("%%time\nw = 3\nw"); !strings.Contains(o.stdout, "Wall time: ") || o.result["text/plain"] != "3" {
		t.Errorf("time of a cell: %q %v %+v", o.stdout, o.result, o.Error)
	}
	if o := s.run("%timeit -n 10 -r 2 1+1"); !strings.Contains(o.stdout, "per loop (mean ± std. dev. of 2 runs, 10 loops each)") {
		t.Errorf("timeit: %q %+v", o.stdout, o.Error)
	}
	if o := s.run("%%bash\nexit 3"); o.Error == nil || o.Error.Name != "UsageError" {
		t.Errorf("a script that fails: %+v", o.Error)
	}
	if o := s.run("pass\n%pip fails"); o.Error == nil || !strings.HasSuffix(o.Error.Traceback, " -m pip fails ended with status 1\n") ||
		strings.Count(o.Error.Traceback, "\n") != 1 || o.Error.Line == nil || *o.Error.Line != 2 {
		t.Errorf("pip that fails: %+v", o.Error)
	}
	if o := s.run("%%capture got\nprint('quiet')"); o.stdout != "" || s.text("got.stdout") != `'quiet\n'` {
		t.Errorf("capture: %q", o.stdout)
	}
	if o := s.run("!exit 4"); o.Status != "ok" || s.text("_exit_code") != "4" {
		t.Errorf("a command that fails: %+v", o.Error)
	}
}

func TestPackagesInstalledLaterAreFound(t *testing.T) {
	t.Setenv("PYTHONUSERBASE", t.TempDir()+"/made/later")
	s := start(t)
	s.run("def later():\n  import fresh_package_of_a_test as f\n  return f")
	if o := s.run("later()"); o.Error == nil {
		t.Fatal("the package is found before it is installed")
	}
	s.text(`import os, site
os.makedirs(site.getusersitepackages())
with open(site.getusersitepackages() + "/fresh_package_of_a_test.py", "w") as f: f.write("x = 5");`)
	if got := s.text("later().x"); got != "5" {
		t.Errorf("got %s", got)
	}
}

func TestCaretsPointAtTheMistake(t *testing.T) {
	s := start(t)
	o := s.run("a = [1]\nb = a[0] + a[5]")
	lines := strings.Split(o.Error.Traceback, "\n")
	for i, l := range lines {
		if strings.Contains(l, "b = a[0] + a[5]") && i+1 < len(lines) && strings.ContainsAny(lines[i+1], "~^") {
			if code, marks := strings.Index(l, "a[5]"), strings.Index(lines[i+1], "~^^^"); code != marks {
				t.Errorf("marks in column %d, code in %d:\n%s", marks, code, o.Error.Traceback)
			}
			return
		}
	}
	t.Logf("this Python does not mark columns:\n%s", o.Error.Traceback)
}

func TestEnvironmentOfACellEndsWithIt(t *testing.T) {
	s := start(t)
	s.execute("import os\nos.environ['CALL'], os.environ['KEPT']", map[string]any{"env": map[string]string{"CALL": "1", "KEPT": "2"}})
	if o := s.await(); o.result["text/plain"] != "('1', '2')" {
		t.Errorf("%v %+v", o.result, o.Error)
	}
	s.execute("os.environ['KEPT'] = 'mine'", map[string]any{"env": map[string]string{"KEPT": "3"}})
	s.await()
	if got := s.text("os.environ.get('CALL'), os.environ.get('KEPT')"); got != "(None, 'mine')" {
		t.Errorf("got %s", got)
	}
}
