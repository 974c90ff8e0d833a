package rules

import (
	"errors"
	"testing"

	"github.com/recluse-dev/recluse/gate/source"
)

// fuzz checks that the findings are complete, whatever is analyzed.
func fuzz(f *testing.F, python string, lang Language, seeds ...string) {
	for _, s := range seeds {
		f.Add(s)
	}
	a := defaultAnalyzer(f, python)
	f.Fuzz(func(t *testing.T, code string) {
		for _, x := range check(t, a, lang, code) {
			if x.Line < 1 || x.Message == "" || x.Rule == "" || x.Severity.Rank() < 0 {
				t.Errorf("incomplete finding: %+v", x)
			}
			// The parser process must not fail, whatever it reads.
			if x.Message == "Python's parser failed on the code, so it was only scanned" && len(code) < 4096 {
				t.Errorf("the parser failed on %q", code)
			}
		}
	})
}

func FuzzJudgeBash(f *testing.F) {
	fuzz(f, "", Bash, append(corpus(f, "bash.txt")[:60],
		"rm -rf /", "eval \"$(echo rm)\"", "a <<E\nb\nE", "x=(1 2); ${x[@]}", "${a:-${b:=c}}", "\ue000 -rf /",
		"{a,b}{c,d}", "case x in a) b;; esac", "$'\\x72'", "find . -exec sh -c '{}' \\;", "xargs -I", "env -S 'a b'",
		"printf %", "x=abc; echo ${x:1:1} ${x//b/$y} ${x%%c*} ${x@Q} ${x@z} ${!x} ${#x} ${x^^} ${x/a/}", "\ue001\ue002")...)
}

func FuzzJudgePython(f *testing.F) {
	fuzz(f, "", Python, append(corpus(f, "python.txt")[:60],
		"exec('exec(\"x\")')", "f'{a!r:>{w}}'", "'%s%%' % x", "'{}{1}'.format(1)", "a[::0]", "chr(10**9)",
		"def f(*a, b=1, **k): return f(*a)", "match x:\n case {'a': b}: pass", "class A(B, metaclass=C): x: int = 1",
		"\ue000", "async def f():\n async with a as b: await c", "x = [*y, *[1]]", "from . import a", "bytes([300])",
		"(lambda x: x)(1)(2)")...)
}

func FuzzScanPython(f *testing.F) {
	fuzz(f, NoPython, Python,
		"import os\nos.system('x')", "'''", "\"\\", "# x", "f(\"a\" \"b\")", "from a import b")
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		oneRule, "a: &a [*a]", "version: 1\nrules: [[[]]]", "? [x]\n: y", "rules: {<<: *x}",
		"version: 1\nlists: &l [&m [a], *m]\nrules: *l", "rules: &r [*r]",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		set, err := Parse("f", data)
		if (set != nil) == (err != nil) { // all or nothing
			t.Fatalf("%v with error %v", set, err)
		}
		if err == nil {
			return
		}
		pos, ok := errors.AsType[*source.Error](err)
		if !errors.Is(err, ErrInvalid) || !ok || pos.Line < 1 || pos.Column < 1 {
			t.Fatalf("got %v", err)
		}
	})
}
