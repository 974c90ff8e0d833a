package rules

import (
	"context"
	"errors"
	"fmt"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// ruleTest is a test of a rule: a piece of code in the file of rules.
type ruleTest struct {
	Bash    *string  `yaml:"bash"`
	Python  *string  `yaml:"python"`
	Command []string `yaml:"command"`
	Place   place    // in the file of rules

	code Code
}

// check validates and completes a test that was read from a file.
func (t *ruleTest) check() error {
	switch {
	case t.Command != nil:
		t.code = Code{Language: Command, Args: t.Command}
	case t.Bash != nil:
		t.code = Code{Language: Bash, Text: *t.Bash}
	case t.Python != nil:
		t.code = Code{Language: Python, Text: *t.Python}
	default:
		return errors.New("a test needs code: bash, python or command")
	}
	return nil
}

// The outcomes of a test, which are the keys under tests in the file.
const (
	outcomeHit         = "hit"
	outcomeMiss        = "miss"
	outcomeUndecidable = "undecidable"
)

// RunTests runs the tests in the file of rules. It returns the number of tests, and an error that lists the failed
// ones.
func (s *Set) RunTests(ctx context.Context) (int, error) {
	a := NewAnalyzer(s, "")
	defer a.Close()
	count := 0
	var failed []error
	for _, r := range s.rules {
		for _, want := range []string{outcomeHit, outcomeMiss, outcomeUndecidable} {
			for _, t := range r.Tests[want] {
				count++
				findings, err := a.Findings(ctx, t.code)
				if err != nil {
					return count, err
				}
				if got := outcome(findings, r.Name); got != want {
					failed = append(failed, fmt.Errorf("line %d: rule %s: %q: want %s, got %s",
						t.Place.line, r.Name, show(t.code.String()), want, got))
				}
			}
		}
	}
	if len(failed) > 0 {
		return count, &v1.Error{
			Code:    CodeInvalid,
			Op:      "test rules",
			Message: fmt.Sprintf("%d of %d tests failed", len(failed), count),
			Remedy:  "correct the rule or its test",
			Err:     errors.Join(failed...),
		}
	}
	return count, nil
}

// outcome returns what a rule found.
func outcome(findings []Finding, rule ruleName) string {
	got := outcomeMiss
	for _, f := range findings {
		if f.Rule != string(rule) {
			continue
		}
		if !f.Undecidable {
			return outcomeHit
		}
		got = outcomeUndecidable
	}
	return got
}
