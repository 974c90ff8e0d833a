package rules

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/lazyregexp"
)

// Set is a list of rules, as loaded from a file. It is immutable and safe for concurrent use.
type Set struct {
	rules []*rule
}

// Names returns the names of the rules in the order of the file.
func (s *Set) Names() []string {
	names := make([]string, len(s.rules))
	for i, r := range s.rules {
		names[i] = string(r.Name)
	}
	return names
}

// rule is one rule of the file.
type rule struct {
	Name        ruleName              `yaml:"name"`
	Action      string                `yaml:"action" choice:"deny ask warn note"`
	Undecidable string                `yaml:"undecidable" choice:"ignore note warn ask deny"`
	Languages   []Language            `yaml:"languages" choice:"python bash command"`
	Message     string                `yaml:"message"`
	Fix         string                `yaml:"fix"`
	When        []*condition          `yaml:"when"` // one of them must hold
	Tests       map[string][]ruleTest `yaml:"tests" choice:"hit miss undecidable"`
	Place       place                 // in its file

	severity    Action // of a sure case
	undecidable Action // of an undecidable case; "": not reported
}

type ruleName string

var validName = lazyregexp.New(`^[a-z0-9][a-z0-9-]{0,63}$`)

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *ruleName) UnmarshalText(text []byte) error {
	if !validName().Match(text) {
		return fmt.Errorf("invalid rule name %q: use lower-case letters, digits and hyphens", text)
	}
	*n = ruleName(text)
	return nil
}

// check validates and completes a rule that was read from a file.
func (r *rule) check() error {
	switch {
	case r.Name == "":
		return errors.New("a rule needs a name")
	case r.Action == "":
		return fmt.Errorf("rule %s needs an action: deny, ask, warn or note", r.Name)
	case r.Message == "":
		return fmt.Errorf("rule %s needs a message", r.Name)
	case len(r.When) == 0:
		return fmt.Errorf("rule %s needs conditions under when", r.Name)
	}
	severities := map[string]Action{"note": v1.GateAllow, "warn": v1.GateWarn, "ask": v1.GateAsk, "deny": v1.GateDeny}
	r.severity, r.undecidable = severities[r.Action], severities[r.Undecidable]
	return nil
}

// maxFindings limits the findings of one piece of code. More would not be read.
const maxFindings = 50

// findings compares facts with the rules.
func (s *Set) findings(facts []*fact, lang Language) []Finding {
	var out []Finding
	type spot struct {
		rule *rule
		line int
	}
	seen := map[spot]int{}           // index in out
	same := map[uint64][]judgement{} // of facts that differ only in their place
	for _, f := range facts {
		judged, ok := same[f.key(false)]
		if !ok {
			judged = s.judge(f, lang)
			same[f.key(false)] = judged
		}
		for _, j := range judged {
			found := j.finding(f)
			key := spot{rule: j.rule, line: f.place.line}
			if i, ok := seen[key]; ok {
				// One finding per rule and line; a sure one replaces an undecidable one.
				if out[i].Undecidable && !found.Undecidable {
					out[i] = found
				}
			} else if len(out) < maxFindings {
				seen[key] = len(out)
				out = append(out, found)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Finding) int {
		return cmp.Or(a.Line-b.Line, b.Severity.Rank()-a.Severity.Rank())
	})
	return out
}

// judgement is the result of comparing a fact with a rule.
type judgement struct {
	rule    *rule
	answer  answer
	subject string // what matched
}

// judge compares a fact with all rules.
func (s *Set) judge(f *fact, lang Language) []judgement {
	var out []judgement
	for _, r := range s.rules {
		if len(r.Languages) > 0 && !slices.Contains(r.Languages, lang) {
			continue
		}
		best := judgement{rule: r}
		for _, c := range r.When {
			if got, subject := c.match(f); got > best.answer {
				best.answer, best.subject = got, subject
			}
		}
		if f.doubt {
			best.answer = min(best.answer, maybe)
		}
		if best.answer == yes || (best.answer == maybe && r.undecidable != "") {
			out = append(out, best)
		}
	}
	return out
}

func (j *judgement) finding(f *fact) Finding {
	found := Finding{
		Rule:        string(j.rule.Name),
		Line:        max(f.place.line, 1),
		Column:      f.place.column,
		Message:     strings.ReplaceAll(j.rule.Message, "{match}", show(j.subject)),
		Fix:         j.rule.Fix,
		Severity:    j.rule.severity,
		Undecidable: j.answer == maybe || f.kind == kindOpaque || f.unsure,
	}
	if j.answer == maybe {
		found.Severity = j.rule.undecidable
		found.Message = "possibly, but not decidable from the code: " + found.Message
	}
	return found
}
