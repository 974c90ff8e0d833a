package terms

import (
	"bufio"
	"bytes"
	"fmt"
	"path/filepath"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate/source"
)

// The error codes of this package.
const (
	CodeThesaurusInvalid v1.Code = "gate_thesaurus_invalid"
	CodeGraphInvalid     v1.Code = "gate_graph_invalid"
)

// Sentinels for errors.Is.
var (
	ErrThesaurusInvalid = &v1.Error{Code: CodeThesaurusInvalid}
	ErrGraphInvalid     = &v1.Error{Code: CodeGraphInvalid}
)

const (
	maxFile = 256 << 20 // bytes of a thesaurus or of a list of edges
	maxTerm = 1024      // bytes of one term
)

// Thesaurus maps terms to concepts. It is immutable and safe for concurrent use.
type Thesaurus struct {
	name      string
	terms     []string         // as written
	conceptOf []int32          // by term
	concepts  []string         // their names
	byName    map[string]int32 // concepts by lower-case name
	matcher   *matcher
	near      *nearIndex
}

// Load reads a thesaurus from a file: JSON if its name ends in .json, else a list of terms.
func Load(file string) (*Thesaurus, error) {
	data, err := source.Read(file, maxFile)
	if err != nil {
		return nil, &v1.Error{
			Code:   CodeThesaurusInvalid,
			Op:     "load thesaurus",
			Remedy: "name a thesaurus in JSON (*.json), or a text file with one term per line",
			Err:    err,
		}
	}
	return Parse(file, data)
}

// Parse reads a thesaurus from the content of a file. Any mistake is an error with its line and column.
//
// A name that ends in .json means JSON, which maps terms to concepts:
//
//	{"name": "…", "data": {"<term>": {"id": 1, "nterm": "<concept>", "url": "…"}}}
//
// Any other file has one term per line. Each term is a concept of its own; empty lines and lines that begin with #
// are skipped.
func Parse(file string, data []byte) (*Thesaurus, error) {
	t := &Thesaurus{}
	parse, remedy := t.parseList, "write one term per line"
	if filepath.Ext(file) == ".json" {
		parse, remedy = t.parseJSON, `correct the file; its form is {"data": {"<term>": {"id": 1, "nterm": "<concept>"}}}`
	}
	if err := parse(file, data); err != nil {
		return nil, invalid(CodeThesaurusInvalid, "load thesaurus", remedy, err)
	}
	t.near = newNearIndex(t.terms)
	return t, nil
}

// invalid wraps a mistake in a file.
func invalid(code v1.Code, op, remedy string, err error) error {
	return &v1.Error{Code: code, Op: op, Message: "nothing was loaded", Remedy: remedy, Err: err}
}

func (t *Thesaurus) parseList(file string, data []byte) error {
	t.name = file
	t.grow(bytes.Count(data, []byte("\n")))
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, maxTerm+2)
	n := 0
	for lines.Scan() {
		n++
		term := strings.TrimSpace(lines.Text())
		if term == "" || strings.HasPrefix(term, "#") {
			continue
		}
		if err := t.add(term, term); err != nil {
			return &source.Error{File: file, Line: n, Column: 1, Message: err.Error()}
		}
	}
	if lines.Err() != nil {
		return &source.Error{File: file, Line: n + 1, Column: 1, Message: errTermTooLong.Error()}
	}
	if len(t.terms) == 0 {
		return &source.Error{File: file, Line: 1, Column: 1, Message: "no terms"}
	}
	return nil
}

// grow makes room for a number of terms.
func (t *Thesaurus) grow(terms int) {
	t.byName = make(map[string]int32, terms)
	t.matcher = newMatcher(terms)
}

var errTermTooLong = fmt.Errorf("a term is longer than %d bytes", maxTerm)

// add adds a term. A duplicate term is allowed if it has the same concept.
func (t *Thesaurus) add(term, concept string) error {
	if len(term) > maxTerm {
		return errTermTooLong
	}
	name := strings.ToLower(concept)
	number, exists := t.byName[name]
	if !exists {
		number = int32(len(t.concepts))
	}
	n, old, hasWords := t.matcher.add(term)
	switch {
	case !hasWords:
		return fmt.Errorf("term %q has no words in it", term)
	case old && t.conceptOf[n] != number:
		return fmt.Errorf("term %q has two concepts: %q and %q", term, t.concepts[t.conceptOf[n]], concept)
	case old:
		return nil
	}
	if !exists {
		t.byName[name] = number
		t.concepts = append(t.concepts, concept)
	}
	t.terms = append(t.terms, term)
	t.conceptOf = append(t.conceptOf, number)
	return nil
}

// Mention is a place in a text that mentions a concept.
type Mention struct {
	Start, End int // bytes
	Concept    string
}

// Mentions returns the mentions of concepts in a text, in order. They do not overlap.
func (t *Thesaurus) Mentions(text string) []Mention {
	matches := t.matcher.find(text, nil)
	out := make([]Mention, len(matches))
	for i, m := range matches {
		out[i] = Mention{int(m.start), int(m.end), t.concepts[t.conceptOf[m.term]]}
	}
	return out
}

// find returns the number of a concept by its name, in any case.
func (t *Thesaurus) find(name string) (int32, error) {
	n, ok := t.byName[strings.ToLower(name)]
	if !ok {
		return 0, fmt.Errorf("the thesaurus has no concept %q", name)
	}
	return n, nil
}
