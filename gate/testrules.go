package gate

import (
	"context"
	"errors"
	"fmt"

	"github.com/recluse-dev/recluse/sandbox"
)

// ruleTest is a piece of code beside a rule, and what the rule should say of it.
type ruleTest struct {
	request Request
	want    string // hit, miss or undecidable
	line    int
}

// TestRules runs the tests that stand beside the rules in their file. It gives how many there were, and an error that
// lists those that failed.
func TestRules(ctx context.Context, rules *Rules) (int, error) {
	c, err := New(Options{Rules: rules, RulesMode: ModeBlock})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	count := 0
	var failed []error
	for _, r := range rules.rules {
		for _, t := range r.tests {
			count++
			findings, err := c.Findings(ctx, t.request)
			if err != nil {
				return count, err
			}
			if got := outcome(findings, r.name); got != t.want {
				failed = append(failed, fmt.Errorf("line %d: rule %s: %q should be a %s and is a %s", t.line, r.name, show(t.request.Text()), t.want, got))
			}
		}
	}
	if len(failed) > 0 {
		return count, &sandbox.Error{
			Code: CodeRulesInvalid, Op: "test rules", Message: fmt.Sprintf("%d of %d tests failed", len(failed), count),
			Remedy: "mend the rule or its test", Err: errors.Join(failed...),
		}
	}
	return count, nil
}

func outcome(findings []Finding, rule string) string {
	got := "miss"
	for _, f := range findings {
		if f.Rule != rule {
			continue
		}
		if !f.Undecidable {
			return "hit"
		}
		got = "undecidable"
	}
	return got
}
