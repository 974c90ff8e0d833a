package rules

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/recluse-dev/recluse/internal/testneed"
)

const pythonRemoval = "import os\nos.system('rm -rf /')\n"

func TestCodeIsParsedAndNeverRun(t *testing.T) {
	marker := t.TempDir() + "/ran"
	a := defaultAnalyzer(t, "")
	code := fmt.Sprintf("open(%q, 'w').write('x')\nexec(\"open(%q, 'w')\")\n", marker, marker)
	check(t, a, Python, code)
	check(t, a, Bash, "touch "+marker+"; $(touch "+marker+")")
	if _, err := os.Stat(marker); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the code was run: %v", err)
	}
}

func TestAParserThatDiesIsReplaced(t *testing.T) {
	a := defaultAnalyzer(t, "")
	if found := check(t, a, Python, pythonRemoval); outcome(found, "no-root-removal") != outcomeHit {
		t.Fatalf("got %v", found)
	}
	idle := <-a.parser.idle
	if err := idle.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	a.parser.idle <- idle
	if found := check(t, a, Python, pythonRemoval); outcome(found, "no-root-removal") != outcomeHit {
		t.Errorf("after the end of the process: %v", found)
	}
}

func TestCodeThatBreaksTheParserIsLookedOver(t *testing.T) {
	t.Parallel()
	a := defaultAnalyzer(t, "")
	for name, code := range map[string]string{
		"deep brackets": strings.Repeat("(", 100_000),
		"deep minus":    "x = " + strings.Repeat("-", 100_000) + "1",
		"a long chain":  "x = " + strings.Repeat("a.b(", 5000) + strings.Repeat(")", 5000),
		"a null byte":   "x = 1\x00",
		"a huge number": "print(0x" + strings.Repeat("f", 100_000) + ", 'x' % 0x" + strings.Repeat("f", 100_000) + ")",
		"bad text":      "x = '\xff\xfe'",
		"large code":    "x = '" + strings.Repeat("y", maxPythonCode) + "'",
	} {
		t.Run(name, func(t *testing.T) {
			if len(code) > maxPythonCode {
				testneed.Slow(t, "the largest code that is looked over")
			}
			if found := check(t, a, Python, pythonRemoval+code); outcome(found, "no-root-removal") == outcomeMiss {
				t.Errorf("got %v", found)
			}
		})
	}
}

func TestWithoutPythonCodeIsLookedOverAndSaidSo(t *testing.T) {
	a := defaultAnalyzer(t, NoPython)
	code := "# os.system('rm -rf /usr')\nimport os\nx = \"os.system('rm -rf /etc')\"\nos.system( 'rm -rf /')\n"
	findings := check(t, a, Python, code)
	rules := map[string]int{}
	for _, f := range findings {
		if !f.Undecidable {
			t.Errorf("a decided finding in code that was not parsed: %s", f)
		}
		rules[f.Rule] = f.Line
	}
	if rules["not-parsed"] == 0 || rules["no-root-removal"] != 4 || len(findings) != 2 {
		t.Errorf("got %v", findings)
	}
	if found := check(t, a, Python, "print(1)"); len(found) != 1 {
		t.Errorf("no finding for code that was not parsed: %v", found)
	}
	if found := check(t, defaultAnalyzer(t, "/nowhere/python3"), Python, pythonRemoval); len(found) == 0 {
		t.Error("no finding if Python cannot be started")
	}
}

func TestManyAskAtOnce(t *testing.T) {
	a := defaultAnalyzer(t, "")
	var asking sync.WaitGroup
	for i := range 20 {
		asking.Go(func() {
			code, want := "print(1)\n", outcomeMiss
			if i%2 == 0 {
				code, want = pythonRemoval, outcomeHit
			}
			findings, err := a.Findings(t.Context(), Code{Language: Python, Text: code})
			if got := outcome(findings, "no-root-removal"); err != nil || got != want {
				t.Errorf("got %v, %v", findings, err)
			}
		})
	}
	asking.Wait()
}

func TestDeepShellCodeIsSaidToBeTooDeep(t *testing.T) {
	t.Parallel()
	a := defaultAnalyzer(t, "")
	for name, code := range map[string]string{
		"brackets":      strings.Repeat("(", 1<<20),
		"substitutions": strings.Repeat("$(", 1<<19),
		"branches":      strings.Repeat("if ", 1<<18),
		"too large":     strings.Repeat("a"+strings.Repeat(" ", 1000)+"\n", maxShellCode/1000),
		"code in code":  strings.Repeat("eval ", 20) + "ls",
	} {
		t.Run(name, func(t *testing.T) {
			if found := check(t, a, Bash, code); outcome(found, "too-large-to-judge") != outcomeUndecidable {
				t.Errorf("got %v", found)
			}
		})
	}
}
