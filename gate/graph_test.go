package gate

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

const kitchen = `{"name": "kitchen", "data": {
  "pan": {"id": 1, "nterm": "cookware"},
  "frying pan": {"id": 1, "nterm": "cookware"},
  "onion": {"id": 2, "nterm": "vegetable", "url": "https://example.com/onion"},
  "Carrot": {"id": "3", "nterm": "vegetable"},
  "invoice": {"id": 4, "nterm": "accounting"},
  "c++": {"id": 5, "nterm": "language"}
}}`

func thesaurus(t testing.TB, text string) *Thesaurus {
	t.Helper()
	th, err := ParseThesaurus("t.json", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return th
}

func found(th *Thesaurus, text string) []string {
	var out []string
	for _, m := range th.matcher.find(text, nil) {
		out = append(out, text[m.start:m.end])
	}
	return out
}

func TestTermsAreFoundAtWordBoundariesInAnyCase(t *testing.T) {
	th := thesaurus(t, kitchen)
	tests := []struct {
		name, text string
		want       []string
	}{
		{"nothing", "", nil},
		{"any case", "ONION Onion carrot", []string{"ONION", "Onion", "carrot"}},
		{"not inside words", "onions company pan_size span", nil},
		{"signs around", "(onion),pan.", []string{"onion", "pan"}},
		{"the longest", "a frying pan here", []string{"frying pan"}},
		{"the shorter where the longer does not fit", "frying panther pan", []string{"pan"}},
		{"white space counts as one", "frying \n\t pan", []string{"frying pan"[:6] + " \n\t pan"}},
		{"signs in a term", "C++ and c + +x", []string{"C++", "c + +"}},
		{"other scripts around", "émonion onion", []string{"onion"}},
		{"invalid text", "onion\xff\xfeonion", []string{"onion", "onion"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := found(th, test.text); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// The automaton agrees with trying every term at every place.
func TestMatchingAgreesWithTheSlowWay(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	words := []string{"a", "b", "c", "d"}
	phrase := func(n int) string {
		var w []string
		for range 1 + rng.IntN(n) {
			w = append(w, words[rng.IntN(len(words))])
		}
		return strings.Join(w, " ")
	}
	for round := range 300 {
		var terms []string
		for range 1 + rng.IntN(8) {
			terms = append(terms, phrase(4))
		}
		th, err := ParseTerms("terms", []byte(strings.Join(terms, "\n")))
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Fields(phrase(30))
		var want []string
		for i := 0; i < len(text); {
			best := 0
			for _, term := range terms {
				w := strings.Fields(term)
				if len(w) > best && i+len(w) <= len(text) && slices.Equal(text[i:i+len(w)], w) {
					best = len(w)
				}
			}
			if best > 0 {
				want = append(want, strings.Join(text[i:i+best], " "))
			}
			i += max(best, 1)
		}
		if got := found(th, strings.Join(text, " ")); !slices.Equal(got, want) {
			t.Fatalf("round %d: terms %q, text %q: got %q, want %q", round, terms, text, got, want)
		}
	}
}

func TestAMistakeInAThesaurusIsToldWithItsPlace(t *testing.T) {
	tests := []struct {
		name, file   string
		line, column int
		says         string
	}{
		{"empty", "", 1, 1, "too early"},
		{"cut off", "{\"name\": \"x\",\n \"data\": {\"a\": {\"id\": 1,", 2, 25, "too early"},
		{"a list", "[]", 1, 1, "should be an object"},
		{"not JSON", "{\"data\":\n {x}}", 2, 3, "not valid JSON"},
		{"not JSON in an entry", "{\"data\": {\n  \"a\": {\"id\": x}}}", 2, 15, "not valid JSON"},
		{"no data", `{"name": "x"}`, 1, 1, "no terms"},
		{"empty data", `{"data": {}}`, 1, 1, "no terms"},
		{"data that is a list", "{\n\"data\": []}", 2, 9, "should be an object"},
		{"an entry that is text", "{\"data\": {\n  \"a\": \"b\"}}", 2, 8, "should be"},
		{"no concept", "{\"data\": {\n  \"a\": {\"id\": 1}}}", 2, 8, "no nterm"},
		{"no id", "{\"data\": {\n  \"a\": {\"nterm\": \"x\"}}}", 2, 8, "no id"},
		{"a term of nothing", "{\"data\": {\n  \" \": {\"id\": 1, \"nterm\": \"x\"}}}", 2, 3, "no words"},
		{"one term for two concepts", "{\"data\": {\"a\": {\"id\": 1, \"nterm\": \"x\"},\n \"A\": {\"id\": 2, \"nterm\": \"y\"}}}", 2, 2, "stands for"},
		{"something behind it", "{\"data\": {\"a\": {\"id\": 1, \"nterm\": \"x\"}}}\n{}", 2, 1, "behind the end"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			th, err := ParseThesaurus("t.json", []byte(test.file))
			if th != nil || !errors.Is(err, ErrThesaurusInvalid) {
				t.Fatalf("got %v, %v", th, err)
			}
			pos, ok := errors.AsType[*PositionError](err)
			if !ok || pos.Line != test.line || pos.Column != test.column || !strings.Contains(pos.Message, test.says) {
				t.Errorf("got %v, want line %d, column %d, %q", err, test.line, test.column, test.says)
			}
		})
	}
}

func TestAMistakeInAGraphIsToldWithItsPlace(t *testing.T) {
	th := thesaurus(t, kitchen)
	for name, test := range map[string]struct {
		file         string
		line, column int
	}{
		"an object":       {"{}", 1, 1},
		"cut off":         {"[[\"a\",", 1, 7},
		"three ends":      {"[\n[\"cookware\", \"vegetable\", \"language\"]]", 2, 1},
		"unknown concept": {"[[\"cookware\", \"vegetable\"],\n [\"cookware\", \"car\"]]", 2, 2},
	} {
		t.Run(name, func(t *testing.T) {
			edges, err := ParseEdges("g.json", []byte(test.file), th)
			pos, ok := errors.AsType[*PositionError](err)
			if edges != nil || !errors.Is(err, ErrGraphInvalid) || !ok || pos.Line != test.line || pos.Column != test.column {
				t.Errorf("got %v, %v", edges, err)
			}
		})
	}
}

func TestPlainTermsGetIDsOfTheirOwn(t *testing.T) {
	th, err := ParseTerms("terms.txt", []byte("# things\nonion\n\n carrot \nONION\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(th.Concepts()); got != "[{1 onion } {2 carrot }]" {
		t.Errorf("got %s", got)
	}
	if _, err := ParseTerms("terms.txt", []byte("# only a comment\n")); !errors.Is(err, ErrThesaurusInvalid) {
		t.Errorf("no terms gave %v", err)
	}
}

func TestStrictness(t *testing.T) {
	th := thesaurus(t, kitchen)
	const long = "alpha beta gamma delta epsilon zeta theta iota kappa lambda omicron rho sigma tau onion"
	tests := []struct {
		name       string
		strictness Strictness
		text       string
		action     Action
		rule       string
	}{
		{"empty input passes", Strict, " \n", Allow, ""},
		{"nothing known, permissive", Permissive, "engine wheel", Allow, RuleUnknownTerms},
		{"nothing known", Normal, "engine wheel", Deny, RuleUnknownTerms},
		{"too few known", Normal, long, Deny, RuleFewTerms},
		{"enough known", Normal, "fry the onion", Allow, ""},
		{"unconnected, normal", Normal, "onion invoice", Allow, ""},
		{"unconnected, strict", Strict, "onion invoice", Deny, RuleUnconnected},
		{"connected by a path, strict", Strict, "c++ onion", Allow, ""},
		{"one concept, strict", Strict, "carrot onion", Allow, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			g, err := NewGraph(th, GraphOptions{Strictness: test.strictness, Documents: []string{"put the onion into the frying pan"}, Edges: [][2]string{{"Cookware", "language"}}})
			if err != nil {
				t.Fatal(err)
			}
			c, err := New(Options{Graphs: map[string]*Graph{"cook": g}})
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

func TestConceptsAreConnectedByPath(t *testing.T) {
	g, err := NewGraph(thesaurus(t, kitchen), GraphOptions{Documents: []string{"onion pan", "pan c++"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(g.Path("vegetable", "Language"), " "); got != "vegetable cookware language" {
		t.Errorf("got %q", got)
	}
	if got := g.Path("vegetable", "accounting"); got != nil {
		t.Errorf("got %q", got)
	}
	th := thesaurus(t, kitchen)
	edges, err := ParseEdges("g.json", []byte(`[["vegetable", "Cookware"],
 ["cookware", "accounting"]]`), th)
	if err != nil {
		t.Fatal(err)
	}
	if g, err = NewGraph(th, GraphOptions{Edges: edges}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(g.Path("vegetable", "accounting"), " "); got != "vegetable cookware accounting" {
		t.Errorf("by edges %q", got)
	}
	if got := g.Path("vegetable", "language"); got != nil {
		t.Errorf("by edges %q", got)
	}
	if _, err := NewGraph(thesaurus(t, kitchen), GraphOptions{Edges: [][2]string{{"cookware", "car"}}}); !errors.Is(err, ErrGraphInvalid) {
		t.Errorf("an unknown concept gave %v", err)
	}
	if _, err := NewGraph(thesaurus(t, kitchen), GraphOptions{Strictness: "lax"}); !errors.Is(err, ErrGraphInvalid) {
		t.Errorf("an unknown strictness gave %v", err)
	}
}

func TestARefusalNamesKnownTermsNearTheUnknownOnes(t *testing.T) {
	g, err := NewGraph(thesaurus(t, kitchen), GraphOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(Options{Graphs: map[string]*Graph{"": g}})
	if err != nil {
		t.Fatal(err)
	}
	d, err := c.Judge(t.Context(), Request{Language: Bash, Code: "peel onoin with carot; inv"})
	if err != nil {
		t.Fatal(err)
	}
	if d.Action != Deny || !slices.Contains(d.Unknown, "onoin") {
		t.Errorf("got %+v", d)
	}
	for _, want := range []string{`"onoin" is not a known term; near it: onion`, `"carot" is not a known term; near it: Carrot`, `"inv" is not a known term; near it: invoice`} {
		if !strings.Contains(d.Reason, want) {
			t.Errorf("the reason does not say %q:\n%s", want, d.Reason)
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
