package rules

import (
	"bytes"
	_ "embed" // the default rules
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate/source"
	"github.com/recluse-dev/recluse/internal/lazyregexp"
)

// CodeInvalid is the code of errors in a file of rules.
const CodeInvalid v1.Code = "gate_rules_invalid"

// ErrInvalid matches errors in a file of rules, for errors.Is.
var ErrInvalid = &v1.Error{Code: CodeInvalid}

//go:embed rules.yaml
var defaultRules []byte

// maxFile is the largest file of rules, in bytes.
const maxFile = 4 << 20

// Default returns the built-in rules.
func Default() (*Set, error) { return Parse("rules.yaml", defaultRules) }

// DefaultFile returns the text of the built-in rules, as a starting point for a custom file.
func DefaultFile() []byte { return bytes.Clone(defaultRules) }

// Load reads rules from a file.
func Load(file string) (*Set, error) {
	data, err := source.Read(file, maxFile)
	if err != nil {
		return nil, &v1.Error{Code: CodeInvalid, Op: "load rules", Remedy: "name a file of rules in YAML", Err: err}
	}
	return Parse(file, data)
}

// Parse reads rules from the content of a file, whose name is used in errors. Any mistake is an error with its line and
// column.
func Parse(file string, data []byte) (*Set, error) {
	set, err := parse(file, data)
	if err != nil {
		return nil, &v1.Error{
			Code:    CodeInvalid,
			Op:      "load rules",
			Message: "invalid rules",
			Remedy:  "correct the file; docs/GATE.md describes its format",
			Err:     err,
		}
	}
	return set, nil
}

func parse(file string, data []byte) (*Set, error) {
	d := newDecoder(file)
	var doc, extra yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return nil, syntaxError(file, data, err)
	}
	if len(doc.Content) == 0 {
		return nil, d.errorf(&doc, "the file is empty")
	}
	if err := dec.Decode(&extra); !errors.Is(err, io.EOF) {
		return nil, d.errorf(&extra, "the file has more than one YAML document")
	}
	var content struct {
		Version string  `yaml:"version"`
		Lists   any     `yaml:"lists"` // a place for YAML anchors
		Rules   []*rule `yaml:"rules"`
	}
	if err := d.decode(doc.Content[0], &content); err != nil {
		return nil, err
	}
	switch {
	case content.Version != "1":
		return nil, d.errorf(doc.Content[0], "missing or unsupported version: the file must contain version: 1")
	case len(content.Rules) == 0:
		return nil, d.errorf(doc.Content[0], "the file has no rules")
	}
	lines := map[ruleName]int{}
	for _, r := range content.Rules {
		if line, ok := lines[r.Name]; ok {
			message := fmt.Sprintf("rule %s is already defined in line %d", r.Name, line)
			return nil, &source.Error{File: file, Line: r.Place.line, Column: r.Place.column, Message: message}
		}
		lines[r.Name] = r.Place.line
	}
	return &Set{rules: content.Rules}, nil
}

var yamlLine = lazyregexp.New(`line (\d+): (.*)`)

// syntaxError adds the position to an error of the YAML package. That package reports only a line. The line is one too
// low if the error comes from its parser and not from its scanner.
func syntaxError(file string, data []byte, err error) error {
	m := yamlLine().FindStringSubmatch(err.Error())
	if m == nil {
		return &source.Error{File: file, Line: 1, Column: 1, Message: err.Error()}
	}
	line, _ := strconv.Atoi(m[1])
	for _, s := range []string{
		"node content", "expected key", "'-' indicator", "',' or ']'", "',' or '}'", "<document start>",
	} {
		if strings.Contains(m[2], s) {
			line++
		}
	}
	lines := bytes.Split(data, []byte("\n"))
	line = min(max(line, 1), len(lines))
	indent := len(lines[line-1]) - len(bytes.TrimLeft(lines[line-1], " "))
	return &source.Error{File: file, Line: line, Column: indent + 1, Message: m[2]}
}
