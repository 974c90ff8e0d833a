package gate

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/recluse-dev/recluse/sandbox"
)

const (
	// maxThesaurusFile bounds a thesaurus on disk.
	maxThesaurusFile = 256 << 20
	// maxTerm bounds one term, in bytes.
	maxTerm = 1024
)

// Concept is what terms stand for.
type Concept struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	URL  string `json:"url,omitempty"`
}

// Thesaurus knows terms and the concepts they stand for. It does not change and is safe for concurrent use.
type Thesaurus struct {
	name     string
	terms    []string // as written
	concept  []int32  // by term
	concepts []Concept
	byName   map[string]int32 // small letters
	matcher  *matcher
	near     *nearIndex
}

// Name is what the thesaurus calls itself.
func (t *Thesaurus) Name() string { return t.name }

// Terms is how many terms it has.
func (t *Thesaurus) Terms() int { return len(t.terms) }

// Concepts lists its concepts.
func (t *Thesaurus) Concepts() []Concept { return append([]Concept(nil), t.concepts...) }

// LoadThesaurus reads a thesaurus from a JSON file.
func LoadThesaurus(name string) (*Thesaurus, error) {
	data, err := readFile(name, maxThesaurusFile)
	if err != nil {
		return nil, &sandbox.Error{Code: CodeThesaurusInvalid, Op: "load thesaurus", Remedy: "name a thesaurus in JSON", Err: err}
	}
	return ParseThesaurus(name, data)
}

// ParseThesaurus reads a thesaurus in JSON:
//
//	{"name": "…", "data": {"<term>": {"id": 1, "nterm": "<concept>", "url": "…"}}}
//
// A mistake is an error with its line and column, and nothing is loaded.
func ParseThesaurus(file string, data []byte) (*Thesaurus, error) {
	p := &thesaurusReader{file: file, data: data, dec: json.NewDecoder(bytes.NewReader(data)), b: newThesaurusBuilder(bytes.Count(data, []byte(`"nterm"`)))}
	if err := p.read(); err != nil {
		return nil, invalid(CodeThesaurusInvalid, "load thesaurus", `mend the file; its form is {"name": …, "data": {"<term>": {"id": 1, "nterm": "<concept>"}}}`, err)
	}
	return p.b.build(p.name), nil
}

// LoadTerms reads plain terms from a file.
func LoadTerms(name string) (*Thesaurus, error) {
	data, err := readFile(name, maxThesaurusFile)
	if err != nil {
		return nil, &sandbox.Error{Code: CodeThesaurusInvalid, Op: "load terms", Remedy: "name a text file with a term per line", Err: err}
	}
	return ParseTerms(name, data)
}

// ParseTerms reads plain terms, one per line; each is a concept of its own, numbered from 1. Empty lines and those that
// begin with # do not count.
func ParseTerms(file string, data []byte) (*Thesaurus, error) {
	b := newThesaurusBuilder(bytes.Count(data, []byte("\n")))
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, maxTerm+2)
	n := 0
	for lines.Scan() {
		n++
		term := strings.TrimSpace(lines.Text())
		if term == "" || strings.HasPrefix(term, "#") {
			continue
		}
		id := strconv.Itoa(len(b.t.concepts) + 1)
		if err := b.add(term, Concept{ID: id, Name: term}); err != nil && !errors.Is(err, errSameTerm) {
			return nil, invalid(CodeThesaurusInvalid, "load terms", "mend the line", &PositionError{File: file, Line: n, Column: 1, Message: err.Error()})
		}
	}
	if err := lines.Err(); err != nil {
		return nil, invalid(CodeThesaurusInvalid, "load terms", "one term per line", &PositionError{File: file, Line: n + 1, Column: 1, Message: fmt.Sprintf("a term is longer than %d bytes", maxTerm)})
	}
	if len(b.t.terms) == 0 {
		return nil, invalid(CodeThesaurusInvalid, "load terms", "put a term on each line", &PositionError{File: file, Line: 1, Column: 1, Message: "there are no terms"})
	}
	return b.build(file), nil
}

// thesaurusReader reads the JSON form and knows where it is.
type thesaurusReader struct {
	file string
	data []byte
	dec  *json.Decoder
	b    *thesaurusBuilder
	name string
}

// entry is what stands behind a term.
type entry struct {
	ID    json.RawMessage `json:"id"`
	NTerm *string         `json:"nterm"`
	URL   string          `json:"url"`
}

func (p *thesaurusReader) errorf(offset int64, format string, args ...any) error {
	return at(p.file, p.data, int(offset), format, args...)
}

// here is where the next token begins.
func (p *thesaurusReader) here() int64 {
	i := p.dec.InputOffset()
	for i < int64(len(p.data)) && strings.IndexByte(" \t\r\n,:", p.data[i]) >= 0 {
		i++
	}
	return i
}

func (p *thesaurusReader) token() (json.Token, error) {
	from := p.here()
	tok, err := p.dec.Token()
	if err == nil {
		return tok, nil
	}
	if se, ok := errors.AsType[*json.SyntaxError](err); ok {
		return nil, p.errorf(from, "not valid JSON: %s", se.Error())
	}
	return nil, p.jsonError(from, err)
}

// jsonError gives an error of the JSON package its place; base is where the failed value begins.
func (p *thesaurusReader) jsonError(base int64, err error) error {
	if _, ok := errors.AsType[*json.SyntaxError](err); ok {
		// A decoder that has given out tokens miscounts; a fresh one tells how far into the value it came.
		var skip json.RawMessage
		again := json.NewDecoder(bytes.NewReader(p.data[base:])).Decode(&skip)
		if se, ok := errors.AsType[*json.SyntaxError](again); ok {
			return p.errorf(base+max(se.Offset-1, 0), "not valid JSON: %s", se.Error())
		}
	}
	if te, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return p.errorf(base, "%s should be %s, and is %s", orText(te.Field, "this"), te.Type, te.Value)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return p.errorf(int64(len(p.data)), "the file ends too early")
	}
	return p.errorf(base, "%v", err)
}

func (p *thesaurusReader) open(what string) error {
	from := p.here()
	tok, err := p.token()
	if err != nil {
		return err
	}
	if tok != json.Delim('{') {
		return p.errorf(from, "%s should be an object", what)
	}
	return nil
}

func (p *thesaurusReader) read() error {
	if err := p.open("the thesaurus"); err != nil {
		return err
	}
	found := false
	for p.dec.More() {
		tok, err := p.token()
		if err != nil {
			return err
		}
		from := p.here()
		switch tok {
		case "name":
			if err := p.dec.Decode(&p.name); err != nil {
				return p.jsonError(from, err)
			}
		case "data":
			if found {
				return p.errorf(from, "data is given twice")
			}
			found = true
			if err := p.entries(); err != nil {
				return err
			}
		default: // others' tools write more than we read
			var skip json.RawMessage
			if err := p.dec.Decode(&skip); err != nil {
				return p.jsonError(from, err)
			}
		}
	}
	if _, err := p.token(); err != nil {
		return err
	}
	if from := p.here(); from < int64(len(p.data)) {
		return p.errorf(from, "something stands behind the end of the thesaurus")
	}
	if !found || len(p.b.t.terms) == 0 {
		return p.errorf(0, "there are no terms under data")
	}
	return nil
}

func (p *thesaurusReader) entries() error {
	if err := p.open("data"); err != nil {
		return err
	}
	for p.dec.More() {
		from := p.here()
		tok, err := p.token()
		if err != nil {
			return err
		}
		term, _ := tok.(string)
		value := p.here()
		var e entry
		if err := p.dec.Decode(&e); err != nil {
			return p.jsonError(value, err)
		}
		if e.NTerm == nil || strings.TrimSpace(*e.NTerm) == "" {
			return p.errorf(value, "term %q has no nterm, the concept it stands for", term)
		}
		id, ok := conceptID(e.ID)
		if !ok {
			return p.errorf(value, "term %q has no id: a number or a text", term)
		}
		if err := p.b.add(term, Concept{ID: id, Name: *e.NTerm, URL: e.URL}); err != nil && !errors.Is(err, errSameTerm) {
			return p.errorf(from, "%v", err)
		}
	}
	_, err := p.token()
	return err
}

// conceptID reads an id, a number or a text.
func conceptID(raw json.RawMessage) (string, bool) {
	if len(raw) == 0 {
		return "", false
	}
	if raw[0] == '"' {
		var s string
		return s, json.Unmarshal(raw, &s) == nil && s != ""
	}
	s := string(raw)
	_, err := strconv.ParseFloat(s, 64)
	return s, err == nil
}

// thesaurusBuilder gathers terms.
type thesaurusBuilder struct {
	t *Thesaurus
	m *matcherBuilder
}

func newThesaurusBuilder(terms int) *thesaurusBuilder {
	return &thesaurusBuilder{t: &Thesaurus{byName: make(map[string]int32, terms)}, m: newMatcherBuilder(terms)}
}

// errSameTerm says that a term is there already and means the same.
var errSameTerm = errors.New("the term is already there")

func (b *thesaurusBuilder) add(term string, c Concept) error {
	if len(term) > maxTerm {
		return fmt.Errorf("a term is longer than %d bytes", maxTerm)
	}
	name := strings.ToLower(c.Name)
	concept, ok := b.t.byName[name]
	if !ok {
		concept = int32(len(b.t.concepts))
	}
	n, old, hasWords := b.m.add(term)
	switch {
	case !hasWords:
		return fmt.Errorf("term %q has no words in it", term)
	case old && b.t.concept[n] != concept:
		return fmt.Errorf("term %q stands for %q already and cannot stand for %q too", term, b.t.concepts[b.t.concept[n]].Name, c.Name)
	case old:
		return errSameTerm
	}
	if !ok {
		b.t.byName[name] = concept
		b.t.concepts = append(b.t.concepts, c)
	}
	b.t.terms = append(b.t.terms, term)
	b.t.concept = append(b.t.concept, concept)
	return nil
}

func (b *thesaurusBuilder) build(name string) *Thesaurus {
	b.t.name = name
	b.t.matcher = b.m.build()
	b.t.near = newNearIndex(b.t.terms)
	return b.t
}
