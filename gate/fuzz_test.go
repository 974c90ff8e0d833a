package gate

import (
	"errors"
	"testing"
	"unicode/utf8"
)

// check that a decision is whole, whatever was judged.
func checkDecision(t *testing.T, d Decision) {
	t.Helper()
	if d.Action.rank() == 0 && d.Action != Allow {
		t.Errorf("action %q", d.Action)
	}
	for _, f := range d.Findings {
		if f.Line < 1 || f.Message == "" || f.Rule == "" {
			t.Errorf("half a finding: %+v", f)
		}
	}
	if d.Action != Allow && d.Reason == "" {
		t.Error("held up without a reason")
	}
}

func FuzzJudgeBash(f *testing.F) {
	for _, s := range corpus(f, "bash.txt")[:60] {
		f.Add(s)
	}
	for _, s := range []string{"rm -rf /", "eval \"$(echo rm)\"", "a <<E\nb\nE", "x=(1 2); ${x[@]}", "${a:-${b:=c}}", "\ue000 -rf /", "{a,b}{c,d}", "case x in a) b;; esac", "$'\\x72'", "find . -exec sh -c '{}' \\;", "xargs -I", "env -S 'a b'", "printf %"} {
		f.Add(s)
	}
	c := defaultChecker(f, Options{})
	f.Fuzz(func(t *testing.T, code string) {
		d, err := c.Judge(t.Context(), Request{Language: Bash, Code: code})
		if err != nil {
			t.Fatal(err)
		}
		checkDecision(t, d)
	})
}

func FuzzJudgePython(f *testing.F) {
	for _, s := range corpus(f, "python.txt")[:60] {
		f.Add(s)
	}
	for _, s := range []string{"exec('exec(\"x\")')", "f'{a!r:>{w}}'", "'%s%%' % x", "'{}{1}'.format(1)", "a[::0]", "chr(10**9)", "def f(*a, b=1, **k): return f(*a)", "match x:\n case {'a': b}: pass", "class A(B, metaclass=C): x: int = 1", "\ue000", "async def f():\n async with a as b: await c", "x = [*y, *[1]]", "from . import a", "bytes([300])", "(lambda x: x)(1)(2)"} {
		f.Add(s)
	}
	c := defaultChecker(f, Options{})
	f.Fuzz(func(t *testing.T, code string) {
		d, err := c.Judge(t.Context(), Request{Language: Python, Code: code})
		if err != nil {
			t.Fatal(err)
		}
		checkDecision(t, d)
		for _, x := range d.Findings {
			// The parser's own program must not fall over what it reads.
			if x.Message == "Python's parser gave up on the code, so it was only looked over" && len(code) < 4096 {
				t.Errorf("the parser died of %q", code)
			}
		}
	})
}

func FuzzScanPython(f *testing.F) {
	for _, s := range []string{"import os\nos.system('x')", "'''", "\"\\", "# x", "f(\"a\" \"b\")", "from a import b"} {
		f.Add(s)
	}
	c := defaultChecker(f, Options{Python: "none"})
	f.Fuzz(func(t *testing.T, code string) {
		d, err := c.Judge(t.Context(), Request{Language: Python, Code: code})
		if err != nil {
			t.Fatal(err)
		}
		checkDecision(t, d)
	})
}

func FuzzGraph(f *testing.F) {
	th := thesaurus(f, kitchen)
	g, err := NewGraph(th, GraphOptions{Strictness: Strict, Documents: []string{"onion pan"}})
	if err != nil {
		f.Fatal(err)
	}
	c, err := New(Options{Graphs: map[string]*Graph{"": g}})
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{"", "onion", "frying frying pan pan", "c++c++", "ONION\xff", "İstanbul onion", "pan-pan_pan"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, code string) {
		d, err := c.Judge(t.Context(), Request{Language: Bash, Code: code})
		if err != nil {
			t.Fatal(err)
		}
		checkDecision(t, d)
		last := int32(0)
		for _, m := range th.matcher.find(code, nil) {
			if m.start < last || m.end <= m.start || int(m.end) > len(code) {
				t.Fatalf("match %+v in %q", m, code)
			}
			last = m.end
		}
	})
}

func FuzzParseThesaurus(f *testing.F) {
	for _, s := range []string{kitchen, "{", `{"data":{"a":{"id":1,"nterm":"x"}}}`, `{"data":{"a":{"id":1e999,"nterm":"x"}}}`, `{"data":{"a":null}}`, `[]`, `{"data":{"a":{"id":"","nterm":""}}} x`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		th, err := ParseThesaurus("f", data)
		checkLoaded(t, th != nil, err, ErrThesaurusInvalid)
		terms, err := ParseTerms("f", data)
		checkLoaded(t, terms != nil, err, ErrThesaurusInvalid)
	})
}

func FuzzParseRules(f *testing.F) {
	for _, s := range []string{oneRule, "a: &a [*a]", "version: 1\nrules: [[[]]]", "? [x]\n: y", "rules: {<<: *x}", "version: 1\nlists: &l [&m [a], *m]\nrules: *l"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		rules, err := ParseRules("f", data)
		checkLoaded(t, rules != nil, err, ErrRulesInvalid)
	})
}

// checkLoaded: all or nothing, and a mistake has its place.
func checkLoaded(t *testing.T, loaded bool, err, want error) {
	t.Helper()
	if loaded == (err != nil) {
		t.Fatalf("loaded %v with error %v", loaded, err)
	}
	if err == nil {
		return
	}
	pos, ok := errors.AsType[*PositionError](err)
	if !errors.Is(err, want) || !ok || pos.Line < 1 || pos.Column < 1 {
		t.Fatalf("got %v", err)
	}
	_ = utf8.ValidString(err.Error())
}
