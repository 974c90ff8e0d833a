package gate

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
)

const pythonRemoval = "import os\nos.system('rm -rf /')\n"

func TestCodeIsParsedAndNeverRun(t *testing.T) {
	marker := t.TempDir() + "/ran"
	c := defaultChecker(t, Options{})
	code := fmt.Sprintf("open(%q, 'w').write('x')\nexec(\"open(%q, 'w')\")\n", marker, marker)
	judge(t, c, Request{Language: Python, Code: code})
	judge(t, c, Request{Language: Bash, Code: "touch " + marker + "; $(touch " + marker + ")"})
	if _, err := os.Stat(marker); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the code was run: %v", err)
	}
}

func TestAParserThatDiesIsReplaced(t *testing.T) {
	c := defaultChecker(t, Options{})
	req := Request{Language: Python, Code: pythonRemoval}
	if d := judge(t, c, req); d.Action != Deny {
		t.Fatalf("got %+v", d)
	}
	c.parser.mu.Lock()
	idle := c.parser.idle[0]
	c.parser.mu.Unlock()
	if err := idle.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if d := judge(t, c, req); d.Action != Deny || d.Findings[0].Undecidable {
		t.Errorf("after its death: %+v", d)
	}
}

func TestCodeThatBreaksTheParserIsLookedOver(t *testing.T) {
	c := defaultChecker(t, Options{})
	for name, code := range map[string]string{
		"deep brackets": strings.Repeat("(", 100_000),
		"deep minus":    "x = " + strings.Repeat("-", 500_000) + "1",
		"a long chain":  "x = " + strings.Repeat("a.b(", 5000) + strings.Repeat(")", 5000),
		"a null byte":   "x = 1\x00",
		"a huge number": "print(0x" + strings.Repeat("f", 100_000) + ", 'x' % 0x" + strings.Repeat("f", 100_000) + ")",
		"bad text":      "x = '\xff\xfe'",
		"large code":    "x = '" + strings.Repeat("y", maxPythonCode) + "'",
	} {
		t.Run(name, func(t *testing.T) {
			d := judge(t, c, Request{Language: Python, Code: pythonRemoval + code})
			found := false
			for _, f := range d.Findings {
				found = found || f.Rule == "no-root-removal"
			}
			if !found {
				t.Errorf("got %+v", d.Findings)
			}
		})
	}
}

func TestWithoutPythonCodeIsLookedOverAndSaidSo(t *testing.T) {
	c := defaultChecker(t, Options{Python: "none"})
	d := judge(t, c, Request{Language: Python, Code: "# os.system('rm -rf /usr')\nimport os\nx = \"os.system('rm -rf /etc')\"\nos.system( 'rm -rf /')\n"})
	rules := map[string]int{}
	for _, f := range d.Findings {
		if !f.Undecidable {
			t.Errorf("sure without having parsed: %s", f)
		}
		rules[f.Rule] = f.Line
	}
	if rules["not-parsed"] == 0 || rules["no-root-removal"] != 4 || len(d.Findings) != 2 {
		t.Errorf("got %v", d.Findings)
	}
	if d := judge(t, c, Request{Language: Python, Code: "print(1)"}); len(d.Findings) != 1 {
		t.Errorf("code that was not parsed passed in silence: %+v", d)
	}
	missing := defaultChecker(t, Options{Python: "/nowhere/python3"})
	if d := judge(t, missing, Request{Language: Python, Code: pythonRemoval}); len(d.Findings) == 0 {
		t.Error("a Python that cannot be started passed in silence")
	}
}

func TestManyAskAtOnce(t *testing.T) {
	c := defaultChecker(t, Options{})
	var asking sync.WaitGroup
	for i := range 20 {
		asking.Go(func() {
			code, want := "print(1)\n", Allow
			if i%2 == 0 {
				code, want = pythonRemoval, Deny
			}
			d, err := c.Judge(t.Context(), Request{Language: Python, Code: code, Session: fmt.Sprint(i)})
			if err != nil || d.Action != want {
				t.Errorf("got %+v, %v", d, err)
			}
		})
	}
	asking.Wait()
}

func TestDeepShellCodeIsSaidToBeTooDeep(t *testing.T) {
	c := defaultChecker(t, Options{})
	for name, code := range map[string]string{
		"brackets":      strings.Repeat("(", 1<<20),
		"substitutions": strings.Repeat("$(", 1<<19),
		"branches":      strings.Repeat("if ", 1<<18),
		"too large":     strings.Repeat("a\n", 1<<20),
		"code in code":  strings.Repeat("eval ", 20) + "ls",
	} {
		t.Run(name, func(t *testing.T) {
			findings, err := c.Findings(t.Context(), Request{Language: Bash, Code: code})
			if err != nil || outcome(findings, "too-large-to-judge") != "undecidable" {
				t.Errorf("got %v, %v", findings, err)
			}
		})
	}
}
