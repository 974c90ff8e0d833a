package gate

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/recluse-dev/recluse/sandbox"
)

// Strictness is how much a graph asks of code.
type Strictness string

// The strictnesses.
const (
	// Permissive tells what it sees and passes everything.
	Permissive Strictness = "permissive"
	// Normal wants known terms: some, and not too few for the number of words.
	Normal Strictness = "normal"
	// Strict also wants the concepts to be connected with each other in the role's graph.
	Strict Strictness = "strict"
)

// The rules by which a graph objects.
const (
	RuleUnknownTerms = "thesaurus-no-known-terms"
	RuleFewTerms     = "thesaurus-few-known-terms"
	RuleUnconnected  = "thesaurus-unconnected-concepts"
)

// DefaultMinRatio is the least share of words that known terms must have under Normal.
const DefaultMinRatio = 0.1

const (
	minWord        = 3 // letters of a word that counts
	maxSuggestions = 5
	maxNear        = 3
	maxLookups     = 10       // of unknown words among the terms
	maxHintText    = 64 << 10 // bytes of code in which unknown words are counted
)

// GraphOptions say what a graph asks of code. Zero fields take their defaults.
type GraphOptions struct {
	Strictness Strictness // empty: Normal
	MinRatio   float64    // 0: DefaultMinRatio
	// Documents are texts of the role: concepts that follow one another in one are connected.
	Documents []string
	// Edges are connections, each between two concepts.
	Edges [][2]string
}

// Graph judges whether code speaks of a role's concepts. It does not change and is safe for concurrent use.
type Graph struct {
	thesaurus *Thesaurus
	opts      GraphOptions
	edges     map[int32][]int32 // by concept
	joined    map[uint64]bool   // pairs of concepts that have an edge
	group     []int32           // by concept: concepts with the same number are connected by a path
}

// NewGraph makes a graph over a thesaurus.
func NewGraph(t *Thesaurus, opts GraphOptions) (*Graph, error) {
	if opts.Strictness == "" {
		opts.Strictness = Normal
	}
	if !slices.Contains([]Strictness{Permissive, Normal, Strict}, opts.Strictness) {
		return nil, &sandbox.Error{
			Code: CodeGraphInvalid, Op: "make graph", Message: fmt.Sprintf("strictness %q is not known", opts.Strictness), Remedy: "say permissive, normal or strict",
		}
	}
	if opts.MinRatio < 0 || opts.MinRatio > 1 {
		return nil, &sandbox.Error{Code: CodeGraphInvalid, Op: "make graph", Message: fmt.Sprintf("a ratio of %g", opts.MinRatio), Remedy: "say a number from 0 to 1"}
	}
	if opts.MinRatio == 0 {
		opts.MinRatio = DefaultMinRatio
	}
	g := &Graph{thesaurus: t, opts: opts, edges: map[int32][]int32{}, joined: map[uint64]bool{}, group: make([]int32, len(t.concepts))}
	for i := range g.group {
		g.group[i] = int32(i)
	}
	for _, e := range opts.Edges {
		a, ok1 := t.byName[strings.ToLower(e[0])]
		b, ok2 := t.byName[strings.ToLower(e[1])]
		if !ok1 || !ok2 {
			missing := e[0]
			if ok1 {
				missing = e[1]
			}
			return nil, &sandbox.Error{Code: CodeGraphInvalid, Op: "make graph", Message: fmt.Sprintf("the thesaurus has no concept %q", missing), Remedy: "name concepts as its nterm does"}
		}
		g.connect(a, b)
	}
	for _, doc := range opts.Documents {
		last := int32(-1)
		for _, m := range t.matcher.find(doc, nil) {
			c := t.concept[m.term]
			if last >= 0 && last != c {
				g.connect(last, c)
			}
			last = c
		}
	}
	g.opts.Documents, g.opts.Edges = nil, nil // they are in the graph now
	for i := range g.group {
		g.group[i] = g.root(int32(i))
	}
	return g, nil
}

// ParseEdges reads connections in JSON: [["concept", "concept"], …]. Both must be concepts of the thesaurus.
func ParseEdges(file string, data []byte, t *Thesaurus) ([][2]string, error) {
	p := &thesaurusReader{file: file, data: data, dec: json.NewDecoder(bytes.NewReader(data))}
	edges, err := p.edges(t)
	if err != nil {
		return nil, invalid(CodeGraphInvalid, "load graph", `mend the file; its form is [["concept", "concept"], …]`, err)
	}
	return edges, nil
}

func (p *thesaurusReader) edges(t *Thesaurus) ([][2]string, error) {
	from := p.here()
	tok, err := p.token()
	if err != nil {
		return nil, err
	}
	if tok != json.Delim('[') {
		return nil, p.errorf(from, "the graph should be a list of pairs")
	}
	var out [][2]string
	for p.dec.More() {
		from := p.here()
		var pair []string
		if err := p.dec.Decode(&pair); err != nil {
			return nil, p.jsonError(from, err)
		}
		if len(pair) != 2 {
			return nil, p.errorf(from, "a connection has two ends, this one %d", len(pair))
		}
		for _, name := range pair {
			if _, ok := t.byName[strings.ToLower(name)]; !ok {
				return nil, p.errorf(from, "the thesaurus has no concept %q", name)
			}
		}
		out = append(out, [2]string{pair[0], pair[1]})
	}
	if _, err := p.token(); err != nil {
		return nil, err
	}
	if from := p.here(); from < int64(len(p.data)) {
		return nil, p.errorf(from, "something stands behind the end of the graph")
	}
	return out, nil
}

// LoadEdges reads connections from a file.
func LoadEdges(name string, t *Thesaurus) ([][2]string, error) {
	data, err := readFile(name, maxThesaurusFile)
	if err != nil {
		return nil, &sandbox.Error{Code: CodeGraphInvalid, Op: "load graph", Remedy: "name a list of connections in JSON", Err: err}
	}
	return ParseEdges(name, data, t)
}

// connect joins two concepts.
func (g *Graph) connect(a, b int32) {
	if k := edge(min(a, b), max(a, b)); !g.joined[k] {
		g.joined[k] = true
		g.edges[a] = append(g.edges[a], b)
		g.edges[b] = append(g.edges[b], a)
	}
	if x, y := g.root(a), g.root(b); x != y {
		g.group[x] = y
	}
}

// root gives the concept that stands for all that are connected with this one.
func (g *Graph) root(c int32) int32 {
	for g.group[c] != c {
		g.group[c] = g.group[g.group[c]]
		c = g.group[c]
	}
	return c
}

// Path gives the concepts by which two are connected, both included; nil: they are not.
func (g *Graph) Path(from, to string) []string {
	a, ok1 := g.thesaurus.byName[strings.ToLower(from)]
	b, ok2 := g.thesaurus.byName[strings.ToLower(to)]
	if !ok1 || !ok2 || g.group[a] != g.group[b] {
		return nil
	}
	came := map[int32]int32{a: a}
	for queue := []int32{a}; len(queue) > 0; queue = queue[1:] {
		if queue[0] == b {
			break
		}
		for _, next := range g.edges[queue[0]] {
			if _, ok := came[next]; !ok {
				came[next] = queue[0]
				queue = append(queue, next)
			}
		}
	}
	var path []string
	for c := b; ; c = came[c] {
		path = append(path, g.thesaurus.concepts[c].Name)
		if c == a {
			break
		}
	}
	slices.Reverse(path)
	return path
}

// judge says what the graph thinks of a text, into a decision.
func (g *Graph) judge(text string, d *Decision, mode Mode) {
	t := g.thesaurus
	words := 0
	matches := t.matcher.find(text, func(lower []byte, _, _ int) {
		if len(lower) >= minWord {
			words++
		}
	})
	concepts := make([]int32, 0, 16)
	seen := map[int32]bool{}
	for _, m := range matches {
		if c := t.concept[m.term]; !seen[c] {
			seen[c] = true
			concepts = append(concepts, c)
			d.ConceptsMatched = append(d.ConceptsMatched, t.concepts[c].Name)
		}
	}
	f, ok := g.objection(len(matches), words, concepts)
	if !ok {
		return
	}
	g.hint(text, matches, d)
	if g.opts.Strictness == Permissive {
		f.Severity = Allow
	}
	d.Findings = append(d.Findings, f)
	d.Action = stricter(d.Action, soften(f.Severity, mode))
}

// objection is what the graph finds wrong, if anything.
func (g *Graph) objection(matched, words int, concepts []int32) (Finding, bool) {
	f := Finding{Line: 1, Column: 1, Severity: Deny}
	switch {
	case words == 0:
		return f, false
	case matched == 0:
		f.Rule = RuleUnknownTerms
		f.Message = "the code speaks of nothing that the thesaurus " + g.thesaurus.name + " knows"
		f.Fix = "use the terms of the field in names, comments and texts"
		return f, true
	case float64(matched)/float64(words) < g.opts.MinRatio:
		f.Rule = RuleFewTerms
		f.Message = fmt.Sprintf("of %d words only %d are known terms, fewer than %.0f%%", words, matched, 100*g.opts.MinRatio)
		f.Fix = "use more terms of the field, or leave out what does not belong to it"
		return f, true
	case g.opts.Strictness != Strict || len(concepts) < 2:
		return f, false
	}
	first := g.group[concepts[0]]
	for _, c := range concepts[1:] {
		if g.group[c] != first {
			f.Rule = RuleUnconnected
			f.Message = fmt.Sprintf("%q and %q have nothing to do with each other in this role's graph", g.thesaurus.concepts[concepts[0]].Name, g.thesaurus.concepts[c].Name)
			f.Fix = "do one thing at a time: split the code so that each part speaks of connected concepts"
			return f, true
		}
	}
	return f, false
}

// hint names the unknown words and the known terms near them.
func (g *Graph) hint(text string, matches []match, d *Decision) {
	count := map[string]int{}
	next := 0
	if len(text) > maxHintText {
		text = strings.ToValidUTF8(text[:maxHintText], "")
	}
	eachLongWord(text, func(word string, start int) {
		for next < len(matches) && int(matches[next].end) <= start {
			next++
		}
		if next < len(matches) && int(matches[next].start) <= start {
			return
		}
		count[strings.ToLower(word)]++
	})
	words := make([]string, 0, len(count))
	for w := range count {
		words = append(words, w)
	}
	slices.SortFunc(words, func(a, b string) int {
		return cmp.Or(count[b]-count[a], cmp.Compare(a, b))
	})
	for i, w := range words {
		if i == maxLookups {
			break
		}
		d.Unknown = append(d.Unknown, w)
		if len(d.Suggestions) == maxSuggestions {
			continue
		}
		if near := g.thesaurus.near.find(w, maxNear); len(near) > 0 {
			d.Suggestions = append(d.Suggestions, Suggestion{Word: w, Near: near})
		}
	}
}

// eachLongWord calls f for the words that count: letters, digits, _ and -, more than two of them.
func eachLongWord(text string, f func(word string, start int)) {
	start := -1
	for i, r := range text {
		inside := wordRune(r) || r == '-'
		if inside && start < 0 {
			start = i
		}
		if !inside && start >= 0 {
			if i-start >= minWord {
				f(text[start:i], start)
			}
			start = -1
		}
	}
	if start >= 0 && len(text)-start >= minWord {
		f(text[start:], start)
	}
}
