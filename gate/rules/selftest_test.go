package rules

import (
	"testing"
)

// The tests beside the default rules are the tests of the default rules.
func TestDefaultRulesDoWhatTheirTestsSay(t *testing.T) {
	rules, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	n, err := rules.RunTests(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d rules, %d tests", len(rules.rules), n)
}
