package gate

import (
	"os"
	"strings"
	"testing"
)

// corpus reads snippets that somebody might well run.
func corpus(t testing.TB, name string) []string {
	t.Helper()
	data, err := os.ReadFile("testdata/benign/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n-----8<-----\n")
}

func defaultChecker(t testing.TB, opts Options) *Checker {
	t.Helper()
	if opts.Rules == nil {
		rules, err := DefaultRules()
		if err != nil {
			t.Fatal(err)
		}
		opts.Rules = rules
	}
	if opts.RulesMode == "" {
		opts.RulesMode = ModeBlock
	}
	c, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestNoRuleFiresOnHarmlessCode(t *testing.T) {
	c := defaultChecker(t, Options{})
	total := 0
	for name, lang := range map[string]Language{"python.txt": Python, "bash.txt": Bash} {
		for i, code := range corpus(t, name) {
			total++
			d, err := c.Judge(t.Context(), Request{Language: lang, Code: code})
			if err != nil {
				t.Fatal(err)
			}
			if d.Action != Allow || len(d.Findings) > 0 { // not even a note about what cannot be decided
				t.Errorf("%s, snippet %d: %s %v\n%s", name, i, d.Action, d.Findings, code)
			}
		}
	}
	if total < 500 {
		t.Errorf("%d snippets, want at least 500", total)
	}
}
