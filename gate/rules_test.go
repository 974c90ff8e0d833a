package gate

import (
	"testing"
)

// The tests beside the default rules are the tests of the default rules.
func TestDefaultRulesDoWhatTheirTestsSay(t *testing.T) {
	rules, err := DefaultRules()
	if err != nil {
		t.Fatal(err)
	}
	n, err := TestRules(t.Context(), rules)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d rules, %d tests", len(rules.rules), n)
}
