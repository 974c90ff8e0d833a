package terms

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/recluse-dev/recluse/gate/source"
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
	th, err := Parse("t.json", []byte(text))
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

// The automaton finds the same matches as a search for every term at every position.
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
		th, err := Parse("terms", []byte(strings.Join(terms, "\n")))
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
		{"no concept", "{\"data\": {\n  \"a\": {\"id\": 1}}}", 2, 8, "missing nterm"},
		{"no id", "{\"data\": {\n  \"a\": {\"nterm\": \"x\"}}}", 2, 8, "no id"},
		{"a term of nothing", "{\"data\": {\n  \" \": {\"id\": 1, \"nterm\": \"x\"}}}", 2, 3, "no words"},
		{"one term for two concepts", "{\"data\": {\"a\": {\"id\": 1, \"nterm\": \"x\"},\n \"A\": {\"id\": 2, \"nterm\": \"y\"}}}", 2, 2, "two concepts"},
		{"something behind it", "{\"data\": {\"a\": {\"id\": 1, \"nterm\": \"x\"}}}\n{}", 2, 1, "behind the end"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			th, err := Parse("t.json", []byte(test.file))
			if th != nil || !errors.Is(err, ErrThesaurusInvalid) {
				t.Fatalf("got %v, %v", th, err)
			}
			pos, ok := errors.AsType[*source.Error](err)
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
			file := filepath.Join(t.TempDir(), "g.json")
			if err := os.WriteFile(file, []byte(test.file), 0o600); err != nil {
				t.Fatal(err)
			}
			edges, err := th.LoadEdges(file)
			pos, ok := errors.AsType[*source.Error](err)
			if edges != nil || !errors.Is(err, ErrGraphInvalid) || !ok || pos.Line != test.line || pos.Column != test.column {
				t.Errorf("got %v, %v", edges, err)
			}
		})
	}
}

func TestPlainTermsAreConceptsOfTheirOwn(t *testing.T) {
	th, err := Parse("terms.txt", []byte("# things\nonion\n\n carrot \nONION\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(th.concepts); got != "[onion carrot]" {
		t.Errorf("got %s", got)
	}
	if _, err := Parse("terms.txt", []byte("# only a comment\n")); !errors.Is(err, ErrThesaurusInvalid) {
		t.Errorf("error of a thesaurus without terms: %v", err)
	}
}

// connected reports whether a path connects two concepts in a strict graph. Each concept is named by a term.
func connected(t *testing.T, g *Graph, text string) bool {
	t.Helper()
	r := g.Review(text)
	if len(r.Concepts) != 2 || r.Objection != nil && r.Objection.Rule != RuleUnconnectedConcepts {
		t.Fatalf("%q: %+v", text, r)
	}
	return r.Objection == nil
}

func TestConceptsAreConnectedByPath(t *testing.T) {
	th := thesaurus(t, kitchen)
	g, err := NewGraph(th, GraphOptions{Strictness: Strict, Documents: []string{"onion pan", "pan c++"}})
	if err != nil {
		t.Fatal(err)
	}
	if !connected(t, g, "onion c++") {
		t.Error("no path by documents from vegetable to language")
	}
	if connected(t, g, "onion invoice") {
		t.Error("a path from vegetable to accounting")
	}
	file := filepath.Join(t.TempDir(), "g.json")
	if err := os.WriteFile(file, []byte(`[["vegetable", "Cookware"],
 ["cookware", "accounting"]]`), 0o600); err != nil {
		t.Fatal(err)
	}
	edges, err := th.LoadEdges(file)
	if err != nil {
		t.Fatal(err)
	}
	if g, err = NewGraph(th, GraphOptions{Strictness: Strict, Edges: edges}); err != nil {
		t.Fatal(err)
	}
	if !connected(t, g, "onion invoice") {
		t.Error("no path by edges from vegetable to accounting")
	}
	if connected(t, g, "onion c++") {
		t.Error("a path from vegetable to language")
	}
	for name, opts := range map[string]GraphOptions{
		"an unknown concept":    {Edges: [][2]string{{"cookware", "car"}}},
		"an unknown strictness": {Strictness: "lax"},
		"a ratio above 1":       {MinRatio: 1.5},
	} {
		if _, err := NewGraph(th, opts); !errors.Is(err, ErrGraphInvalid) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestAMissingFileIsAnError(t *testing.T) {
	if _, err := Load("/nowhere/t.json"); !errors.Is(err, ErrThesaurusInvalid) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if _, err := thesaurus(t, kitchen).LoadEdges("/nowhere/g.json"); !errors.Is(err, ErrGraphInvalid) {
		t.Errorf("got %v", err)
	}
}
