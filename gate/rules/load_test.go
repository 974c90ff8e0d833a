package rules

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate/source"
)

// oneRule is a file with one valid rule, which the tests change.
const oneRule = `version: 1
rules:
  - name: no-foo
    action: deny
    message: runs {match}
    when:
      - {command: foo}
`

func TestAMistakeInRulesIsToldWithItsPlace(t *testing.T) {
	tests := []struct {
		name         string
		file         string
		line, column int
		says         string
	}{
		{"an empty file", "", 1, 1, "empty"},
		{"only a comment", "# nothing\n", 1, 1, "empty"},
		{"not YAML", "version: 1\nrules:\n  - name: [x\n", 3, 3, "expected"},
		{"a value behind a value", "version: 1\nrules:\n  - name: a: b\n", 3, 3, "mapping values"},
		{"a list at the top", "- a\n", 1, 1, "expected a mapping (key: value)"},
		{"no version", strings.Replace(oneRule, "version: 1\n", "", 1), 1, 1, "version: 1"},
		{"no rules", "version: 1\n", 1, 1, "no rules"},
		{"a misspelt key of the file", "version: 1\nrulez: []\n", 2, 1, `did you mean "rules"`},
		{"a misspelt key of a rule", strings.Replace(oneRule, "action", "acton", 1), 4, 5, `did you mean "action"`},
		{"a misspelt key of a condition", strings.Replace(oneRule, "command", "comand", 1), 7, 10, `did you mean "command"`},
		{"a key that is near nothing", strings.Replace(oneRule, "message", "zzzzzzzz", 1), 5, 5, "known keys: "},
		{"a key twice", strings.Replace(oneRule, "    message", "    action: deny\n    message", 1), 5, 5, "duplicate key"},
		{"an unknown action", strings.Replace(oneRule, "deny", "destroy", 1), 4, 13, "deny, ask, warn"},
		{"a bad name", strings.Replace(oneRule, "no-foo", "No Foo", 1), 3, 11, "invalid rule name"},
		{"no conditions", "version: 1\nrules:\n  - {name: a, action: deny, message: m}\n", 3, 5, "conditions"},
		{"no action", "version: 1\nrules:\n  - {name: a, message: m, when: [{command: x}]}\n", 3, 5, "action"},
		{"the same name twice", oneRule + "  - {name: no-foo, action: deny, message: m, when: [{command: x}]}\n", 8, 5, "already defined in line 3"},
		{"a condition about two things", strings.Replace(oneRule, "command: foo", "command: foo, call: bar", 1), 7, 9, "exactly one"},
		{"flags without a command", strings.Replace(oneRule, "command: foo", "call: foo, flags: [-x]", 1), 7, 9, "only allowed with command"},
		{"a bad regular expression", strings.Replace(oneRule, "command: foo", "text: '('", 1), 7, 16, "regular expression"},
		{"an empty list", strings.Replace(oneRule, "command: foo", "command: []", 1), 7, 19, "match nothing"},
		{"a test without code", oneRule + "    tests: {hit: [{}]}\n", 8, 19, "needs code"},
		{"two documents", oneRule + "---\nversion: 1\n", 8, 1, "more than one YAML document"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			rules, err := Parse("my.yaml", []byte(test.file))
			if rules != nil || !errors.Is(err, ErrInvalid) {
				t.Fatalf("got rules %v and error %v", rules, err)
			}
			pos, ok := errors.AsType[*source.Error](err)
			if !ok {
				t.Fatalf("no position in %v", err)
			}
			if pos.File != "my.yaml" || pos.Line != test.line || pos.Column != test.column || !strings.Contains(pos.Message, test.says) {
				t.Errorf("got %v, want line %d, column %d, %q", pos, test.line, test.column, test.says)
			}
		})
	}
}

func TestUsersTestTheirOwnRules(t *testing.T) {
	name := filepath.Join(t.TempDir(), "rules.yaml")
	file := oneRule + "    tests:\n      hit: [{bash: foo x}]\n      miss: [{bash: bar}, {python: foo()}]\n"
	if err := os.WriteFile(name, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	rules, err := Load(name)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := rules.RunTests(t.Context()); n != 3 || err != nil {
		t.Errorf("%d tests, error %v", n, err)
	}
	wrong, err := Parse("x", []byte(strings.Replace(file, "foo x", "fox", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := wrong.RunTests(t.Context()); err == nil || !strings.Contains(err.Error(), "want hit, got miss") {
		t.Errorf("error of a failing test: %v", err)
	}
}

func TestRulesOnImportsSeeEveryWayToImport(t *testing.T) {
	const file = `version: 1
rules:
  - name: no-foreign-code
    action: deny
    message: imports {match}
    when:
      - {import: [ctypes, "ctypes.*", cffi]}
    tests:
      hit:
        - python: import ctypes
        - python: "import json, ctypes as c"
        - python: from ctypes import CDLL
        - python: import ctypes.util
        - python: "def f():\n    from ctypes import util"
        - python: __import__("ctypes")
        - python: "import importlib\nimportlib.import_module('c' + 'ffi')"
        - python: exec("import ctypes")
        - bash: python3 -c 'import ctypes'
        - bash: "python3 <<E\nimport ctypes\nE"
      miss:
        - python: import ctypeslib
        - python: import my.ctypes
        - python: from . import ctypes
        - python: print("import ctypes")
        - python: "ctypes = 1"
        - bash: echo import ctypes
        - bash: ctypes
`
	rules, err := Parse("imports.yaml", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := rules.RunTests(t.Context()); err != nil || n != 17 {
		t.Errorf("%d tests: %v", n, err)
	}
	a := NewAnalyzer(rules, "")
	defer a.Close()
	findings := check(t, a, Python, "x = 1\nfrom ctypes import CDLL")
	if len(findings) == 0 || findings[0].Severity != v1.GateDeny || !strings.HasPrefix(findings[0].String(), "line 2: imports ctypes") {
		t.Errorf("%v", findings)
	}
	// The default rules report a module that cannot be determined.
	findings = check(t, defaultAnalyzer(t, ""), Python, "import sys\n__import__(sys.argv[1])")
	if len(findings) != 1 || !findings[0].Undecidable || !strings.Contains(findings[0].Message, "the imported module cannot be determined") {
		t.Errorf("%v", findings)
	}
}

func TestEveryDefaultRuleHasAHitAndANearMiss(t *testing.T) {
	rules, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	if len(rules.rules) < 30 {
		t.Errorf("%d rules, want at least 30", len(rules.rules))
	}
	for _, r := range rules.rules {
		// Code that static analysis cannot decide is never a hit. Code that is too large has a test of its own.
		hits := len(r.Tests[outcomeHit]) + len(r.Tests[outcomeUndecidable])
		if hits == 0 && r.Name != "too-large-to-judge" || len(r.Tests[outcomeMiss]) == 0 {
			t.Errorf("rule %s has %d hits and %d misses", r.Name, hits, len(r.Tests[outcomeMiss]))
		}
	}
}

func TestAMissingFileIsAnError(t *testing.T) {
	if _, err := Load("/nowhere/rules.yaml"); !errors.Is(err, ErrInvalid) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}
