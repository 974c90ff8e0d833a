package egress

import (
	"fmt"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Within returns an error if inner may allow something that outer does not allow, or allow without an approval what
// needs one by outer. It compares rules, not what they lead to: a policy that would need a closer look is refused.
func Within(inner, outer v1.Network, o Options) error {
	in, err := Compile(inner, o)
	if err != nil {
		return err
	}
	out, err := Compile(outer, o)
	if err != nil {
		return err
	}
	a, b := in.layers[0], out.layers[0]
	for i := range a.rules {
		if r := &a.rules[i]; r.Action != v1.NetworkDeny {
			if err := b.covers(r, a.rules[:i]); err != nil {
				return err
			}
		}
	}
	return b.coversPreset(a)
}

func exceeds(what, why, remedy string) error {
	return &v1.Error{
		Code:    v1.CodeNetworkExceeds,
		Op:      "narrow the network policy",
		Message: fmt.Sprintf("%q allows more than the operator: %s", what, why),
		Remedy:  remedy,
	}
}

// covers returns an error if l does not surely allow everything that a rule of another policy lets through. before are
// the rules that come before it in that policy.
func (l *layer) covers(r *Rule, before []Rule) error {
	for i := range l.rules {
		mine := &l.rules[i]
		harmless := mine.Action == v1.NetworkAllow || mine.Action == r.Action
		switch {
		case harmless && mine.Target.contains(&r.Target):
			return nil
		case !harmless && mine.Target.overlaps(&r.Target) && !repeated(mine, before):
			return exceeds(r.String(), fmt.Sprintf("the rule %q comes first", mine), fmt.Sprintf("put %q before it", mine))
		}
	}
	if l.preset == v1.NetworkAll || l.preset == v1.NetworkPublic &&
		(r.Target.Name == "" || ClassifyName(r.Target.Name) == NamePublic) {
		return nil
	}
	return exceeds(r.String(), "the policy of the operator is "+l.short(), "leave the rule out")
}

// coversPreset returns an error if l does not surely allow what the preset of inner allows. Rules of the preset
// packages are rules of inner.
func (l *layer) coversPreset(inner *layer) error {
	what := "preset " + string(inner.preset)
	switch {
	case inner.preset == v1.NetworkNone || inner.preset == v1.NetworkPackages:
		return nil
	case l.preset != v1.NetworkAll && l.preset != inner.preset:
		return exceeds(what, "the policy of the operator is "+l.short(), "use rules that it allows")
	}
	for i := range l.rules {
		if mine := &l.rules[i]; mine.Action != v1.NetworkAllow && !repeated(mine, inner.rules) {
			return exceeds(what, fmt.Sprintf("the rule %q applies", mine), fmt.Sprintf("add the rule %q", mine))
		}
	}
	return nil
}

// repeated reports whether rules deny everything that r does not simply allow.
func repeated(r *Rule, rules []Rule) bool {
	for i := range rules {
		x := &rules[i]
		if x.Action == v1.NetworkAllow && x.Target.overlaps(&r.Target) {
			return false
		}
		if (x.Action == v1.NetworkDeny || x.Action == r.Action) && x.Target.contains(&r.Target) {
			return true
		}
	}
	return false
}

// short describes a layer in one line.
func (l *layer) short() string {
	n := v1.Network{Preset: l.preset}
	for i := range l.own {
		n.Rules = append(n.Rules, v1.NetworkRule(l.rules[i].String()))
	}
	return fmt.Sprintf("%q", n)
}

// contains reports whether t matches everything that other matches.
func (t *Target) contains(other *Target) bool {
	for _, p := range other.Ports {
		inside := false
		for _, mine := range t.Ports { // ports of a target do not touch each other
			inside = inside || mine.First <= p.First && p.Last <= mine.Last
		}
		if !inside {
			return false
		}
	}
	switch {
	case (t.Name == "") != (other.Name == ""):
		return false
	case t.Name == "":
		return t.Prefix.Bits() <= other.Prefix.Bits() && t.Prefix.Contains(other.Prefix.Addr())
	case other.Apex && !t.matchesName(other.Name):
		return false
	}
	// The subdomains of other are inside if they are those of t or of one of them.
	return !other.Subdomains || t.Subdomains && (t.Name == other.Name || t.matchesName(other.Name))
}

// overlaps reports whether t may match something that other matches. A prefix may be that of any name.
func (t *Target) overlaps(other *Target) bool {
	if len(intersect(t.Ports, other.Ports)) == 0 {
		return false
	}
	switch {
	case (t.Name == "") != (other.Name == ""):
		return true
	case t.Name == "":
		return t.Prefix.Overlaps(other.Prefix)
	}
	return t.Apex && other.matchesName(t.Name) || other.Apex && t.matchesName(other.Name) ||
		t.Subdomains && other.Subdomains && (t.Name == other.Name || t.matchesName(other.Name) || other.matchesName(t.Name))
}
