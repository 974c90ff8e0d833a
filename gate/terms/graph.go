package terms

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Strictness is how much a graph demands of a text.
type Strictness string

// The levels of strictness.
const (
	// Permissive objects to what Normal objects to, but only as advice.
	Permissive Strictness = "permissive"
	// Normal demands known terms: at least one, and enough for the number of words.
	Normal Strictness = "normal"
	// Strict also demands that all concepts are connected with each other in the role's graph.
	Strict Strictness = "strict"
)

// The rules by which a graph objects, as they appear in findings.
const (
	RuleNoKnownTerms        = "thesaurus-no-known-terms"
	RuleFewKnownTerms       = "thesaurus-few-known-terms"
	RuleUnconnectedConcepts = "thesaurus-unconnected-concepts"
)

// DefaultMinRatio is the smallest share of words that must be known terms.
const DefaultMinRatio = 0.1

const (
	minWord        = 3 // bytes of a word that counts
	maxSuggestions = 5
	maxNear        = 3        // terms per suggestion
	maxUnknown     = 10       // unknown words that are reported
	maxHintText    = 64 << 10 // bytes of text in which unknown words are counted
)

// GraphOptions configure a graph. Zero fields take their defaults.
type GraphOptions struct {
	Strictness Strictness // empty: Normal
	MinRatio   float64    // known terms per word, 0 to 1; 0: DefaultMinRatio
	// Documents are texts of the role: concepts that follow one another in a document are connected.
	Documents []string
	// Edges are further connections, each between two concepts.
	Edges [][2]string
}

// Graph reviews texts against the concepts of one role. It is immutable and safe for concurrent use.
type Graph struct {
	thesaurus  *Thesaurus
	strictness Strictness
	minRatio   float64
	group      []int32 // by concept: concepts of the same group are connected by a path
}

// NewGraph returns a graph over a thesaurus.
func NewGraph(t *Thesaurus, opts GraphOptions) (*Graph, error) {
	fail := func(message, remedy string) (*Graph, error) {
		return nil, &v1.Error{Code: CodeGraphInvalid, Op: "make graph", Message: message, Remedy: remedy}
	}
	g := &Graph{
		thesaurus:  t,
		strictness: cmp.Or(opts.Strictness, Normal),
		minRatio:   cmp.Or(opts.MinRatio, DefaultMinRatio),
		group:      make([]int32, len(t.concepts)),
	}
	if !slices.Contains([]Strictness{Permissive, Normal, Strict}, g.strictness) {
		return fail(fmt.Sprintf("unknown strictness %q", g.strictness), "use permissive, normal or strict")
	}
	if g.minRatio < 0 || g.minRatio > 1 {
		return fail(fmt.Sprintf("invalid ratio %g", g.minRatio), "use a number from 0 to 1")
	}
	for i := range g.group {
		g.group[i] = int32(i)
	}
	for _, e := range opts.Edges {
		a, err := t.find(e[0])
		if err != nil {
			return fail(err.Error(), "name concepts as the thesaurus does (nterm)")
		}
		b, err := t.find(e[1])
		if err != nil {
			return fail(err.Error(), "name concepts as the thesaurus does (nterm)")
		}
		g.connect(a, b)
	}
	for _, doc := range opts.Documents {
		matches := t.matcher.find(doc, nil)
		for i := 1; i < len(matches); i++ {
			g.connect(t.conceptOf[matches[i-1].term], t.conceptOf[matches[i].term])
		}
	}
	for i := range g.group {
		g.group[i] = g.root(int32(i))
	}
	return g, nil
}

// Thesaurus returns the thesaurus of the graph.
func (g *Graph) Thesaurus() *Thesaurus { return g.thesaurus }

// connect joins the groups of two concepts.
func (g *Graph) connect(a, b int32) { g.group[g.root(a)] = g.root(b) }

// root returns the concept that represents the group of c.
func (g *Graph) root(c int32) int32 {
	for g.group[c] != c {
		g.group[c] = g.group[g.group[c]]
		c = g.group[c]
	}
	return c
}

// Report is what a graph finds in a text.
type Report struct {
	// Concepts are those that the text mentions, in the order of their first mention.
	Concepts []string
	// Objection is what is wrong with the text; nil: nothing. The remaining fields are set only with it.
	Objection *Objection
	// Unknown are words that are not known terms, the most frequent first.
	Unknown []string
	// Suggestions name known terms that are spelled like unknown words.
	Suggestions []Suggestion
}

// Objection is the reason why a text does not fit.
type Objection struct {
	Rule     string
	Message  string
	Fix      string // what to do instead
	Advisory bool   // the graph is Permissive
}

// Suggestion names known terms that are spelled like an unknown word.
type Suggestion = v1.Suggestion

// Review reports the concepts of a text, and whether the text fits the role.
func (g *Graph) Review(text string) Report {
	var r Report
	t := g.thesaurus
	words := 0
	matches := t.matcher.find(text, func(lower []byte) {
		if len(lower) >= minWord {
			words++
		}
	})
	concepts := make([]int32, 0, 16)
	seen := map[int32]bool{}
	for _, m := range matches {
		if c := t.conceptOf[m.term]; !seen[c] {
			seen[c] = true
			concepts = append(concepts, c)
			r.Concepts = append(r.Concepts, t.concepts[c])
		}
	}
	if r.Objection = g.objection(len(matches), words, concepts); r.Objection != nil {
		r.Objection.Advisory = g.strictness == Permissive
		g.hint(text, matches, &r)
	}
	return r
}

// objection returns what the graph finds wrong, or nil.
func (g *Graph) objection(matched, words int, concepts []int32) *Objection {
	switch {
	case words == 0:
		return nil
	case matched == 0:
		return &Objection{
			Rule:    RuleNoKnownTerms,
			Message: "the code uses no term of the thesaurus " + g.thesaurus.name,
			Fix:     "use the terms of the field in names, comments and texts",
		}
	case float64(matched)/float64(words) < g.minRatio:
		return &Objection{
			Rule:    RuleFewKnownTerms,
			Message: fmt.Sprintf("of %d words only %d are known terms, fewer than %.0f%%", words, matched, 100*g.minRatio),
			Fix:     "use more terms of the field, or leave out what does not belong to it",
		}
	case g.strictness != Strict:
		return nil
	}
	for _, c := range concepts {
		if g.group[c] != g.group[concepts[0]] {
			names := g.thesaurus.concepts
			return &Objection{
				Rule:    RuleUnconnectedConcepts,
				Message: fmt.Sprintf("%q and %q are not connected in this role's graph", names[concepts[0]], names[c]),
				Fix:     "do one thing at a time: split the code so that each part uses connected concepts",
			}
		}
	}
	return nil
}

// hint adds the unknown words of a text, and known terms near them, to a report.
func (g *Graph) hint(text string, matches []match, r *Report) {
	if len(text) > maxHintText {
		text = strings.ToValidUTF8(text[:maxHintText], "")
	}
	count := map[string]int{}
	next := 0
	eachLongWord(text, func(word string, start int) {
		for next < len(matches) && int(matches[next].end) <= start {
			next++
		}
		if next == len(matches) || int(matches[next].start) > start {
			count[strings.ToLower(word)]++
		}
	})
	words := slices.SortedFunc(maps.Keys(count), func(a, b string) int {
		return cmp.Or(count[b]-count[a], cmp.Compare(a, b))
	})
	r.Unknown = words[:min(len(words), maxUnknown)]
	for _, w := range r.Unknown {
		if len(r.Suggestions) == maxSuggestions {
			break
		}
		if near := g.thesaurus.near.find(w, maxNear); len(near) > 0 {
			r.Suggestions = append(r.Suggestions, Suggestion{Word: w, Near: near})
		}
	}
}

// eachLongWord calls f for each run of at least minWord bytes of letters, digits, _ and -.
func eachLongWord(text string, f func(word string, start int)) {
	start := -1
	for i, r := range text + " " {
		switch inside := wordRune(r) || r == '-'; {
		case inside && start < 0:
			start = i
		case !inside && start >= 0:
			if i-start >= minWord {
				f(text[start:i], start)
			}
			start = -1
		}
	}
}
