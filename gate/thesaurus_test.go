package gate

import (
	"slices"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate/terms"
)

const kitchen = `{"name": "kitchen", "data": {
  "pan": {"id": 1, "nterm": "cookware"},
  "frying pan": {"id": 1, "nterm": "cookware"},
  "onion": {"id": 2, "nterm": "vegetable", "url": "https://example.com/onion"},
  "Carrot": {"id": "3", "nterm": "vegetable"},
  "invoice": {"id": 4, "nterm": "accounting"},
  "c++": {"id": 5, "nterm": "language"}
}}`

func kitchenGraph(t testing.TB, opts terms.GraphOptions) *terms.Graph {
	t.Helper()
	th, err := terms.Parse("t.json", []byte(kitchen))
	if err != nil {
		t.Fatal(err)
	}
	g, err := terms.NewGraph(th, opts)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestStrictness(t *testing.T) {
	const long = "alpha beta gamma delta epsilon zeta theta iota kappa lambda omicron rho sigma tau onion"
	tests := []struct {
		name       string
		strictness terms.Strictness
		text       string
		action     Action
		rule       string
	}{
		{"empty input passes", terms.Strict, " \n", v1.GateAllow, ""},
		{"nothing known, permissive", terms.Permissive, "engine wheel", v1.GateAllow, terms.RuleNoKnownTerms},
		{"nothing known", terms.Normal, "engine wheel", v1.GateDeny, terms.RuleNoKnownTerms},
		{"too few known", terms.Normal, long, v1.GateDeny, terms.RuleFewKnownTerms},
		{"enough known", terms.Normal, "fry the onion", v1.GateAllow, ""},
		{"unconnected, normal", terms.Normal, "onion invoice", v1.GateAllow, ""},
		{"unconnected, strict", terms.Strict, "onion invoice", v1.GateDeny, terms.RuleUnconnectedConcepts},
		{"connected by a path, strict", terms.Strict, "c++ onion", v1.GateAllow, ""},
		{"one concept, strict", terms.Strict, "carrot onion", v1.GateAllow, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			g := kitchenGraph(t, terms.GraphOptions{
				Strictness: test.strictness,
				Documents:  []string{"put the onion into the frying pan"},
				Edges:      [][2]string{{"Cookware", "language"}},
			})
			c, err := New(Options{Graphs: map[string]*terms.Graph{"cook": g}})
			if err != nil {
				t.Fatal(err)
			}
			d, err := c.Judge(t.Context(), Request{Language: Python, Code: test.text, Role: "cook"})
			if err != nil {
				t.Fatal(err)
			}
			rule := ""
			if len(d.Findings) > 0 {
				rule = d.Findings[0].Rule
			}
			if d.Action != test.action || rule != test.rule {
				t.Errorf("got %s by %q, want %s by %q: %s", d.Action, rule, test.action, test.rule, d.Reason)
			}
		})
	}
}

func TestARefusalNamesKnownTermsNearTheUnknownOnes(t *testing.T) {
	g := kitchenGraph(t, terms.GraphOptions{})
	c, err := New(Options{Graphs: map[string]*terms.Graph{"": g}})
	if err != nil {
		t.Fatal(err)
	}
	d, err := c.Judge(t.Context(), Request{Language: Bash, Code: "peel onoin with carot; inv"})
	if err != nil {
		t.Fatal(err)
	}
	if d.Action != v1.GateDeny || !slices.Contains(d.Unknown, "onoin") {
		t.Errorf("got %+v", d)
	}
	for _, want := range []string{`"onoin" is not a known term; near it: onion`, `"carot" is not a known term; near it: Carrot`, `"inv" is not a known term; near it: invoice`} {
		if !strings.Contains(d.Reason, want) {
			t.Errorf("the reason does not contain %q:\n%s", want, d.Reason)
		}
	}
	d, err = c.Judge(t.Context(), Request{Language: Bash, Code: "cut onion, CARROT and pan"})
	if err != nil || strings.Join(d.ConceptsMatched, " ") != "vegetable cookware" {
		t.Errorf("got %q, %v", d.ConceptsMatched, err)
	}
	if _, err := c.Judge(t.Context(), Request{Language: Bash, Code: "onion", Role: "gardener"}); err == nil {
		t.Error("a role without a thesaurus was judged")
	}
}
