package rules

import (
	"os"
	"strings"
	"testing"
)

// corpus reads snippets of harmless code.
func corpus(t testing.TB, name string) []string {
	t.Helper()
	data, err := os.ReadFile("testdata/benign/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n-----8<-----\n")
}

// defaultAnalyzer applies the default rules.
func defaultAnalyzer(t testing.TB, python string) *Analyzer {
	t.Helper()
	set, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	a := NewAnalyzer(set, python)
	t.Cleanup(a.Close)
	return a
}

// check returns the findings of code.
func check(t testing.TB, a *Analyzer, lang Language, code string) []Finding {
	t.Helper()
	findings, err := a.Findings(t.Context(), Code{Language: lang, Text: code})
	if err != nil {
		t.Fatal(err)
	}
	return findings
}

func TestNoRuleFiresOnHarmlessCode(t *testing.T) {
	t.Parallel()
	a := defaultAnalyzer(t, "")
	total := 0
	for name, lang := range map[string]Language{"python.txt": Python, "bash.txt": Bash} {
		for i, code := range corpus(t, name) {
			total++
			if findings := check(t, a, lang, code); len(findings) > 0 { // not even a note about what cannot be decided
				t.Errorf("%s, snippet %d: %v\n%s", name, i, findings, code)
			}
		}
	}
	if total < 500 {
		t.Errorf("%d snippets, want at least 500", total)
	}
}
