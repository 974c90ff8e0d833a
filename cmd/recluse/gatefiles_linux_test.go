package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/recluse-dev/recluse/gate"
)

// untried is the setting that switches off trial sandboxes. On a busy machine a slow trial is removed only after the
// program has exited, and tests that check for leftovers do not wait for that.
const untried = "RECLUSE_BACKEND_ORDER=gvisor"

// writeFiles writes files into a directory of the test.
func writeFiles(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestGateCheckTellsTheLanguageByNameOrFirstLine(t *testing.T) {
	t.Parallel()
	const python, bash = "import shutil\nshutil.rmtree('/')\n", "true\nrm -rf /\n" // each is invalid in the other language
	files := map[string]string{
		"a.py": python, "b.PY": python, "c.sh": bash, "d.bash": bash,
		"e": "#!/usr/bin/env python3\n" + python, "f": "#!/usr/bin/python3 -E\n" + python,
		"g": "#!/bin/sh\n" + bash, "h": "#!/usr/bin/env bash\n" + bash, "i": "#!/bin/bash -e\n" + bash,
	}
	dir := writeFiles(t, files)
	args := []string{"gate", "check", "--mode", "block"}
	for name := range files {
		args = append(args, filepath.Join(dir, name))
	}
	got := run(t, "", args...)
	if got.status != 1 {
		t.Errorf("%+v", got)
	}
	for name, code := range files {
		file, line := filepath.Join(dir, name), ":2:"
		if strings.HasPrefix(code, "#!") {
			line = ":3:"
		}
		if !strings.Contains(got.stdout, "\n"+file+": deny\n") || strings.Count(got.stdout, file+line) != 1 {
			t.Errorf("%s: %s", name, got.stdout)
		}
	}
	if n := strings.Count(got.stdout, "(no-root-removal)"); n != len(files) {
		t.Errorf("%d findings: %s", n, got.stdout)
	}
	for name, code := range map[string]string{"a.txt": python, "b": bash, "c": "#!/usr/bin/perl\n1\n", "d": ""} {
		if l := languageOf(name, code); l != "" {
			t.Errorf("%s is taken for %s", name, l)
		}
	}
	if got := run(t, "", "gate", "check", filepath.Join(writeFiles(t, map[string]string{"a.txt": python}), "a.txt")); got.status != statusFailure || !strings.Contains(got.stderr, "--language") {
		t.Errorf("%+v", got)
	}
}

func TestEachRoleHasItsOwnThesaurus(t *testing.T) {
	dir := writeFiles(t, map[string]string{
		"cook.json":  `{"name": "kitchen", "data": {"onion": {"id": 1, "nterm": "vegetable"}, "pan": {"id": 2, "nterm": "cookware"}, "salt": {"id": 3, "nterm": "spice"}}}`,
		"edges.json": `[["vegetable", "cookware"]]`,
		"garden.txt": "spade\nhedge\n",
		"root.yaml":  "name: root\nrules:\n  - reply: \"```repl\\nonion = 'pan'; FINAL(onion)\\n```\"\n",
	})
	at := func(name string) string { return filepath.Join(dir, name) }
	w := newWorld(t, untried, "RECLUSE_GATE_THESAURUS=cook="+at("cook.json")+",gardener="+at("garden.txt"), "RECLUSE_GATE_EDGES=cook="+at("edges.json"),
		"RECLUSE_GATE_STRICTNESS=strict", "RECLUSE_MODELS_SCRIPTS="+at("root.yaml"), "RECLUSE_MODELS_DEFAULT=scripted/root")
	const cooking, gardening, unconnected = "onion = 'pan'", "spade = 'spade'", "onion = 'salt'"
	for file, code := range map[string]string{"cooking.py": cooking, "gardening.py": gardening, "unconnected.py": unconnected} {
		if err := os.WriteFile(at(file), []byte(code), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check := func(args ...string) result {
		t.Helper()
		return w.run("", append(append([]string{"gate", "check", "--json"}, args...), at("cooking.py"), at("gardening.py"), at("unconnected.py"))...)
	}
	actions := func(got result) (out string) {
		t.Helper()
		var list []gate.Decision
		decodeJSON(t, got.stdout, &list)
		for _, d := range list {
			out += string(d.Action) + " "
		}
		return out
	}
	for role, want := range map[string]string{"cook": "allow deny deny ", "gardener": "deny allow deny "} {
		if got := check("--role", role); actions(got) != want || got.status != 1 {
			t.Errorf("%s: %+v", role, got)
		}
	}
	w.must("session", "open", "kitchen", "--role", "cook")
	w.must("session", "open", "garden", "--role", "gardener")
	for _, tt := range []struct {
		code, session string
		runs          bool
	}{{cooking, "kitchen", true}, {gardening, "kitchen", false}, {cooking, "garden", false}} {
		if got := w.run("", "exec", "--session", tt.session, "--python", tt.code); (got.status == 0) != tt.runs || !tt.runs && !strings.Contains(got.stderr, "not run") {
			t.Errorf("%s in %s: %+v", tt.code, tt.session, got)
		}
	}
	// Code without a role, or with an unknown role, is refused.
	big := at("big.txt")
	if err := os.WriteFile(big, []byte(strings.Repeat("nothing here\n", 40_000)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"exec", "--python", cooking},
		{"exec", "--role", "smith", "--gate", "off", "--python", cooking},
		{"session", "open", "forge", "--role", "smith"},
		{"exec", "--session", "forge", "--role", "smith", "--python", cooking},
		{"ask", "What?", "--context", big, "--role", "smith"},
		{"gate", "check", at("cooking.py")},
		{"gate", "check", "--role", "smith", at("cooking.py")},
		{"ask", "What?", "--context", big},
	} {
		if got := w.run("", args...); got.status == 0 || !strings.Contains(got.stderr, "no thesaurus for") || !strings.Contains(got.stderr, "cook, gardener") {
			t.Errorf("%v: %+v", args, got)
		}
	}
	if got := w.run("", "session", "show", "forge"); got.status == 0 {
		t.Errorf("a session of a role that is none was made: %+v", got)
	}
	w.expect("'pan'\n", "exec", "--role", "cook", "--python", cooking+"\nonion")
	w.expect("pan\n", "ask", "What?", "--context", big, "--role", "cook", "-q")
	w.expect("pan\n", "ask", "What?", "--context", big, "--gate", "off", "-q")
	if got := w.run("", "ask", "What?", "--session", "kitchen", "--gate", "off"); got.status != statusFailure || !strings.Contains(got.stderr, "session open") {
		t.Errorf("%+v", got)
	}
	// With a configured role, it is judged.
	env := w.env
	w.env = append(env, "RECLUSE_GATE_ROLE=cook")
	if got := check(); actions(got) != "allow deny deny " {
		t.Errorf("%+v", got)
	}
	w.env = append(env, "RECLUSE_GATE_ROLE=smith")
	if got := check(); got.status != statusFailure || !strings.Contains(got.stdout+got.stderr, "gate.role") {
		t.Errorf("%+v", got)
	}
	w.env = env
}

func TestABrokenGateLetsNothingRun(t *testing.T) {
	dir := writeFiles(t, map[string]string{
		"rules.yaml": "version: 1\nrules:\n  - name: x\n    acton: deny\n", "terms.json": "{\"name\": \"x\",\n \"data\": []}", "edges.json": "[]",
	})
	at := func(name string) string { return filepath.Join(dir, name) }
	w := newWorld(t, untried)
	env := w.env
	defer func() { w.env = env }()
	refused := func(set, says string, args ...string) {
		t.Helper()
		w.env = append(env, set, "RECLUSE_GATE_RULES=off") // not even if the rules are off
		if got := w.run("", args...); got.status != statusFailure || !strings.Contains(got.stderr, says) || strings.Contains(got.stdout, "it ran") {
			t.Errorf("%s, %v: %+v", set, args, got)
		}
	}
	for _, args := range [][]string{{"exec", "--", "echo", "it ran"}, {"exec", "--session", "s", "--", "echo", "it ran"}, {"serve"}} {
		refused("RECLUSE_GATE_RULES_FILE="+at("rules.yaml"), "rules.yaml:4:5", args...)
	}
	for set, says := range map[string]string{
		"RECLUSE_GATE_RULES_FILE=" + at("none.yaml"):  "no such file",
		"RECLUSE_GATE_THESAURUS=" + at("terms.json"):  "terms.json:2:10",
		"RECLUSE_GATE_THESAURUS=" + at("none.json"):   "no such file",
		"RECLUSE_GATE_EDGES=cook=" + at("edges.json"): "has no thesaurus",
	} {
		refused(set, says, "serve")
	}
	refused("RECLUSE_GATE_THESAURUS="+at("terms.json"), "terms.json:2:10", "exec", "--", "echo", "it ran")
}
