package gate

import (
	"bytes"
	_ "embed" // the default rules
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/recluse-dev/recluse/sandbox"
)

//go:embed rules.yaml
var defaultRules []byte

// maxRulesFile bounds a file of rules.
const maxRulesFile = 4 << 20

// DefaultRules gives the rules that come with the program.
func DefaultRules() (*Rules, error) { return ParseRules("rules.yaml", defaultRules) }

// DefaultRulesFile gives the text of the default rules, as a beginning for one's own.
func DefaultRulesFile() []byte { return bytes.Clone(defaultRules) }

// LoadRules reads rules from a file.
func LoadRules(name string) (*Rules, error) {
	data, err := readFile(name, maxRulesFile)
	if err != nil {
		return nil, &sandbox.Error{Code: CodeRulesInvalid, Op: "load rules", Remedy: "name a file of rules in YAML", Err: err}
	}
	return ParseRules(name, data)
}

// readFile reads a file up to a size.
func readFile(name string, most int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > most {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, most)
	}
	return data, nil
}

// ParseRules reads rules; name is what errors call the file. A mistake anywhere is an error with its line and
// column, and nothing is loaded.
func ParseRules(name string, data []byte) (*Rules, error) {
	l := &ruleLoader{file: name}
	rules, err := l.load(data)
	if err != nil {
		return nil, invalid(CodeRulesInvalid, "load rules", "mend the file; docs/GATE.md shows its form", err)
	}
	return rules, nil
}

// ruleLoader turns YAML nodes into rules and keeps positions for errors.
type ruleLoader struct {
	file string
	seen int // values read, against aliases that multiply
}

func (l *ruleLoader) errorf(n *yaml.Node, format string, args ...any) error {
	return &PositionError{File: l.file, Line: max(n.Line, 1), Column: max(n.Column, 1), Message: fmt.Sprintf(format, args...)}
}

var yamlLine = regexp.MustCompile(`line (\d+): (.*)`)

func (l *ruleLoader) load(data []byte) (*Rules, error) {
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, &PositionError{File: l.file, Line: 1, Column: 1, Message: "the file is empty"}
		}
		if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
			return nil, l.syntaxError(data, m[1], m[2])
		}
		return nil, &PositionError{File: l.file, Line: 1, Column: 1, Message: err.Error()}
	}
	var extra yaml.Node
	if err := dec.Decode(&extra); !errors.Is(err, io.EOF) {
		return nil, l.errorf(&extra, "only one document belongs into a file of rules")
	}
	if len(doc.Content) == 0 {
		return nil, &PositionError{File: l.file, Line: 1, Column: 1, Message: "the file is empty"}
	}
	out := &Rules{}
	var version string
	err := l.object(doc.Content[0], map[string]func(*yaml.Node) error{
		"version": func(n *yaml.Node) error { return l.text(n, &version) },
		"lists":   func(*yaml.Node) error { return nil }, // a place for anchors
		"rules": func(n *yaml.Node) error {
			return l.list(n, func(n *yaml.Node) error {
				r, err := l.rule(n)
				if err != nil {
					return err
				}
				for _, other := range out.rules {
					if other.name == r.name {
						return l.errorf(n, "rule %s is already defined in line %d", r.name, other.line)
					}
				}
				out.rules = append(out.rules, r)
				return nil
			})
		},
	})
	switch {
	case err != nil:
		return nil, err
	case version != "1":
		return nil, l.errorf(doc.Content[0], "the file must say version: 1")
	case len(out.rules) == 0:
		return nil, l.errorf(doc.Content[0], "the file has no rules")
	}
	return out, nil
}

// syntaxError gives an error of the YAML package its place. It tells a line only, and one too few where the error is the
// parser's and not the scanner's.
func (l *ruleLoader) syntaxError(data []byte, number, message string) error {
	line, _ := strconv.Atoi(number)
	for _, s := range []string{"node content", "expected key", "'-' indicator", "',' or ']'", "',' or '}'", "<document start>"} {
		if strings.Contains(message, s) {
			line++
		}
	}
	lines := bytes.Split(data, []byte("\n"))
	line = min(max(line, 1), len(lines))
	text := lines[line-1]
	return &PositionError{File: l.file, Line: line, Column: len(text) - len(bytes.TrimLeft(text, " ")) + 1, Message: message}
}

var ruleName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)

func (l *ruleLoader) rule(n *yaml.Node) (*rule, error) {
	r := &rule{line: n.Line}
	var action, undecidable string
	err := l.object(n, map[string]func(*yaml.Node) error{
		"name": func(n *yaml.Node) error {
			if err := l.text(n, &r.name); err != nil {
				return err
			}
			if !ruleName.MatchString(r.name) {
				return l.errorf(n, "%q is no name: small letters, digits and hyphens", r.name)
			}
			return nil
		},
		"action": func(n *yaml.Node) error { return l.choice(n, &action, "deny", "ask", "warn", "note") },
		"undecidable": func(n *yaml.Node) error {
			return l.choice(n, &undecidable, "ignore", "note", "warn", "ask", "deny")
		},
		"languages": func(n *yaml.Node) error {
			return l.list(n, func(n *yaml.Node) error {
				var s string
				if err := l.choice(n, &s, "python", "bash", "command"); err != nil {
					return err
				}
				r.languages = append(r.languages, Language(s))
				return nil
			})
		},
		"message": func(n *yaml.Node) error { return l.text(n, &r.message) },
		"fix":     func(n *yaml.Node) error { return l.text(n, &r.fix) },
		"when": func(n *yaml.Node) error {
			return l.list(n, func(n *yaml.Node) error {
				c, err := l.condition(n)
				r.when = append(r.when, c)
				return err
			})
		},
		"tests": func(n *yaml.Node) error { return l.tests(n, r) },
	})
	switch {
	case err != nil:
		return nil, err
	case r.name == "":
		return nil, l.errorf(n, "a rule needs a name")
	case action == "":
		return nil, l.errorf(n, "rule %s needs an action: deny, ask, warn or note", r.name)
	case r.message == "":
		return nil, l.errorf(n, "rule %s needs a message", r.name)
	case len(r.when) == 0:
		return nil, l.errorf(n, "rule %s needs conditions under when", r.name)
	}
	r.action = severity(action)
	r.undecidable = severity(undecidable)
	return r, nil
}

// severity reads the word of a file.
func severity(s string) Action {
	switch s {
	case "note":
		return Allow
	case "", "ignore":
		return ""
	}
	return Action(s)
}

func (l *ruleLoader) condition(n *yaml.Node) (*condition, error) {
	c := &condition{}
	texts := func(into *[]string) func(*yaml.Node) error {
		return func(n *yaml.Node) error {
			if err := l.texts(n, into); err != nil {
				return err
			}
			if len(*into) == 0 {
				return l.errorf(n, "an empty list would match nothing")
			}
			return nil
		}
	}
	globs := func(into *patterns) func(*yaml.Node) error {
		return func(n *yaml.Node) error {
			var list []string
			if err := texts(&list)(n); err != nil {
				return err
			}
			for _, s := range list {
				*into = append(*into, newPattern(s))
			}
			return nil
		}
	}
	err := l.object(n, map[string]func(*yaml.Node) error{
		"command": globs(&c.command), "flags": texts(&c.flags), "without": texts(&c.without), "args": globs(&c.args),
		"paths": globs(&c.paths), "from": globs(&c.from), "import": globs(&c.imports), "call": globs(&c.calls),
		"reads": globs(&c.reads), "writes": globs(&c.writes), "host": globs(&c.hosts),
		"opaque": func(n *yaml.Node) error {
			return l.list(n, func(n *yaml.Node) error {
				var s string
				err := l.choice(n, &s, opaqueCommand, opaqueCode, opaqueSyntax, opaqueSize)
				c.opaque = append(c.opaque, s)
				return err
			})
		},
		"shape": func(n *yaml.Node) error {
			return l.list(n, func(n *yaml.Node) error {
				var s string
				err := l.choice(n, &s, shapeForkBomb)
				c.shapes = append(c.shapes, s)
				return err
			})
		},
		"keywords": func(n *yaml.Node) error { return l.keywords(n, c) },
		"text": func(n *yaml.Node) error {
			return l.list(n, func(n *yaml.Node) error {
				var s string
				if err := l.text(n, &s); err != nil {
					return err
				}
				re, err := regexp.Compile(s)
				if err != nil {
					return l.errorf(n, "not a regular expression: %v", err)
				}
				c.text = append(c.text, re)
				return nil
			})
		},
	})
	if err != nil {
		return nil, err
	}
	return c, l.whole(n, c)
}

// whole checks that a condition says what it is about, once, and that the rest of it belongs to that.
func (l *ruleLoader) whole(n *yaml.Node, c *condition) error {
	var about []string
	for name, has := range map[string]bool{
		"command": len(c.command) > 0, "import": len(c.imports) > 0, "call": len(c.calls) > 0, "reads": len(c.reads) > 0,
		"writes": len(c.writes) > 0, "host": len(c.hosts) > 0, "text": len(c.text) > 0, "opaque": len(c.opaque) > 0, "shape": len(c.shapes) > 0,
	} {
		if has {
			about = append(about, name)
		}
	}
	sort.Strings(about)
	if len(about) != 1 {
		return l.errorf(n, "a condition is about exactly one of command, call, import, reads, writes, host, text, shape, opaque; this one has %d", len(about))
	}
	if about[0] != "command" && (len(c.flags) > 0 || len(c.without) > 0 || len(c.from) > 0) {
		return l.errorf(n, "flags, without and from belong to a command, not to %s", about[0])
	}
	if about[0] != "call" && len(c.keywords) > 0 {
		return l.errorf(n, "keywords belong to a call, not to %s", about[0])
	}
	if about[0] != "command" && about[0] != "call" && (len(c.args) > 0 || len(c.paths) > 0) {
		return l.errorf(n, "args and paths belong to a command or a call, not to %s", about[0])
	}
	return nil
}

func (l *ruleLoader) keywords(n *yaml.Node, c *condition) error {
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		return l.errorf(n, "keywords are names with patterns")
	}
	c.keywords = map[string]pattern{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		var v string
		if err := l.text(n.Content[i+1], &v); err != nil {
			return err
		}
		c.keywords[n.Content[i].Value] = newPattern(v)
	}
	return nil
}

func (l *ruleLoader) tests(n *yaml.Node, r *rule) error {
	section := func(want string) func(*yaml.Node) error {
		return func(n *yaml.Node) error {
			return l.list(n, func(n *yaml.Node) error {
				t := ruleTest{want: want, line: n.Line}
				code := func(lang Language) func(*yaml.Node) error {
					return func(n *yaml.Node) error {
						t.request.Language = lang
						return l.text(n, &t.request.Code)
					}
				}
				err := l.object(n, map[string]func(*yaml.Node) error{
					"bash": code(Bash), "python": code(Python),
					"command": func(n *yaml.Node) error { t.request.Language = Command; return l.texts(n, &t.request.Args) },
				})
				if err != nil {
					return err
				}
				if t.request.Language == "" {
					return l.errorf(n, "a test needs code: bash, python or command")
				}
				r.tests = append(r.tests, t)
				return nil
			})
		}
	}
	return l.object(n, map[string]func(*yaml.Node) error{"hit": section("hit"), "miss": section("miss"), "undecidable": section("undecidable")})
}

// object reads a mapping; a key that is not expected is an error that names the nearest one.
func (l *ruleLoader) object(n *yaml.Node, keys map[string]func(*yaml.Node) error) error {
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		return l.errorf(n, "expected names with values here, found %s", kindName(n))
	}
	given := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		read, ok := keys[k.Value]
		if !ok {
			return l.errorf(k, "unknown key %q%s", k.Value, didYouMean(k.Value, keys))
		}
		if given[k.Value] {
			return l.errorf(k, "key %q is given twice", k.Value)
		}
		given[k.Value] = true
		if err := read(n.Content[i+1]); err != nil {
			return err
		}
	}
	return nil
}

// list reads a sequence, or a single value as a list of one.
func (l *ruleLoader) list(n *yaml.Node, each func(*yaml.Node) error) error {
	n = resolve(n)
	if l.seen++; l.seen > 200_000 {
		return l.errorf(n, "too many values")
	}
	if n.Kind != yaml.SequenceNode {
		return each(n)
	}
	for _, e := range n.Content {
		// A list in a list is an anchor that was put there: its entries count.
		if inner := resolve(e); inner.Kind == yaml.SequenceNode {
			if err := l.list(inner, each); err != nil {
				return err
			}
			continue
		}
		if err := each(e); err != nil {
			return err
		}
	}
	return nil
}

func (l *ruleLoader) texts(n *yaml.Node, into *[]string) error {
	return l.list(n, func(n *yaml.Node) error {
		var s string
		if err := l.text(n, &s); err != nil {
			return err
		}
		*into = append(*into, s)
		return nil
	})
}

func (l *ruleLoader) text(n *yaml.Node, into *string) error {
	n = resolve(n)
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		return l.errorf(n, "expected text here, found %s", kindName(n))
	}
	*into = n.Value
	return nil
}

func (l *ruleLoader) choice(n *yaml.Node, into *string, options ...string) error {
	if err := l.text(n, into); err != nil {
		return err
	}
	if !slices.Contains(options, *into) {
		return l.errorf(n, "%q is none of %s", *into, strings.Join(options, ", "))
	}
	return nil
}

func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	return n
}

func kindName(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "names with values"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Tag == "!!null":
		return "nothing"
	}
	return "a single value"
}

// didYouMean names the key that is meant, if one is near.
func didYouMean[T any](word string, keys map[string]T) string {
	names := make([]string, 0, len(keys))
	for k := range keys {
		names = append(names, k)
	}
	sort.Strings(names)
	best, at := 3, ""
	for _, k := range names {
		if d := distance(word, k, best); d < best {
			best, at = d, k
		}
	}
	if at != "" {
		return fmt.Sprintf("; did you mean %q?", at)
	}
	return "; known are " + strings.Join(names, ", ")
}
