package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// CodeInvalid is the error code of an invalid configuration.
const CodeInvalid v1.Code = "invalid_config"

// maxFile is the maximum size of the file. A larger one is a mistake.
const maxFile = 1 << 20

// prefix is the prefix of every environment variable.
const prefix = "RECLUSE_"

// Variable is the environment variable with the path of the file, like --config.
const Variable = prefix + "CONFIG"

// Source is where a value comes from.
type Source struct {
	File     string `json:"file,omitempty"`
	Line     int    `json:"line,omitempty"`
	Variable string `json:"variable,omitempty"`
}

func (s Source) String() string {
	switch {
	case s.Variable != "":
		return s.Variable
	case s.File != "":
		return fmt.Sprintf("%s:%d", s.File, s.Line)
	}
	return "default"
}

// Load reads the file, applies the environment variables, and checks the result. If path is empty, it uses
// RECLUSE_CONFIG, else the user's own file, which need not exist. The error contains all mistakes.
func Load(path string, environ []string) (*Config, error) {
	c := Default()
	path, required := locate(path, environ)
	var bad []error
	if path != "" {
		b, err := read(path)
		switch {
		case err == nil:
			bad = c.readFile(path, b)
		case required || !errors.Is(err, fs.ErrNotExist):
			return nil, &v1.Error{
				Code:    CodeInvalid,
				Op:      "read the configuration",
				Message: "cannot read the file",
				Err:     err,
			}
		}
	}
	bad = append(bad, c.readEnviron(environ)...)
	if len(bad) == 0 {
		bad = c.check()
	}
	if len(bad) > 0 {
		return nil, &v1.Error{
			Code:    CodeInvalid,
			Op:      "read the configuration",
			Message: "invalid configuration",
			Remedy:  "list all keys with recluse config show",
			Err:     errors.Join(bad...),
		}
	}
	return c, nil
}

// locate returns the path of the file, and whether the file must exist.
func locate(path string, environ []string) (string, bool) {
	if path != "" {
		return path, true
	}
	env := func(name string) string { return lookup(environ, name) }
	if p := env(Variable); p != "" {
		return p, true
	}
	if d := env("XDG_CONFIG_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "recluse", "config.yaml"), false
	}
	if d := env("HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, ".config", "recluse", "config.yaml"), false
	}
	return "", false
}

func lookup(environ []string, name string) string {
	for _, e := range slices.Backward(environ) {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}
	return ""
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("%s is larger than %s", path, Size(maxFile))
	}
	return b, nil
}

// readFile applies the values in a file, and returns its mistakes.
func (c *Config) readFile(path string, b []byte) []error {
	var doc yaml.Node
	d := yaml.NewDecoder(strings.NewReader(string(b)))
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		return nil // empty, or only comments
	} else if err != nil {
		return []error{fmt.Errorf("%s: %w", path, err)}
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return []error{fmt.Errorf("%s: several documents in one file", path)}
	}
	r := reader{config: c, path: path}
	top := doc.Content[0]
	if top.Kind == yaml.ScalarNode && top.Tag == "!!null" {
		return nil
	}
	r.each(top, "", func(name string, _, value *yaml.Node) {
		s, ok := find(sections(), name)
		if !ok {
			r.fail(value.Line, "unknown section %s%s", name, suggest(name, "", sections()))
			return
		}
		keys, written := fields(s.key), map[string]string{} // written has the name by which the file sets a key
		r.each(value, s.key, func(name string, at, value *yaml.Node) {
			full := s.key + "." + name
			f, ok := r.config.current(keys, full, full)
			if !ok && removed[full] != "" {
				r.fail(at.Line, "key %s was removed: %s", full, removed[full])
				return
			}
			if !ok {
				r.fail(at.Line, "unknown key %s%s", full, suggest(full, s.key+".", all()))
				return
			}
			if before := written[f.key]; before != "" {
				r.fail(at.Line, "%s and %s are the same key", before, full)
				return
			}
			written[f.key] = full
			r.value(f, value)
		})
	})
	return r.bad
}

// renamed maps old names of keys to the current ones. Old names are still read, with a warning.
var renamed = map[string]string{"session.ttl": "session.max_age"}

// removed maps removed keys to what to use instead.
var removed = map[string]string{
	"session.extensions": "recluse session extend can be used any number of times; session.max_age is the upper bound",
	"session.extension":  "recluse session extend --for takes any duration; session.max_age is the upper bound",
}

// current returns the key of a name, which may be an old name. written is the name that the user wrote, for the
// warning.
func (c *Config) current(keys []field, name, written string) (field, bool) {
	if now := renamed[name]; now != "" {
		c.Warnings = append(c.Warnings, fmt.Sprintf(
			"%s is the old name of %s, which counts from the creation of a session, hibernation included", written, now,
		))
		name = now
	}
	return find(keys, name)
}

// reader reads one file and collects its mistakes.
type reader struct {
	config *Config
	path   string
	bad    []error
}

func (r *reader) fail(line int, format string, args ...any) {
	r.bad = append(r.bad, fmt.Errorf("%s:%d: "+format, append([]any{r.path, line}, args...)...))
}

// each calls do for each entry of a mapping. A node that is not a mapping, and a duplicate key, is a mistake.
func (r *reader) each(n *yaml.Node, what string, do func(name string, key, value *yaml.Node)) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.MappingNode {
		if what == "" {
			what = "the file"
		}
		r.fail(n.Line, "%s must be a mapping of keys to values", what)
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		if seen[k.Value] {
			r.fail(k.Line, "duplicate key %s", k.Value)
			continue
		}
		seen[k.Value] = true
		do(k.Value, k, n.Content[i+1])
	}
}

// value reads the value of one key.
func (r *reader) value(f field, n *yaml.Node) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	list := f.typ == reflect.TypeFor[[]string]()
	var text string
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
		r.fail(n.Line, "%s has no value: remove the line, or use \"\"", f.key)
		return
	case n.Kind == yaml.ScalarNode:
		text = n.Value
	case n.Kind == yaml.SequenceNode && list:
		var words []string
		for _, item := range n.Content {
			words = append(words, item.Value)
		}
		text = strings.Join(words, ",")
	default:
		r.fail(n.Line, "%s must be a single value", f.key)
		return
	}
	if err := set(f, f.in(r.config), text); err != nil {
		r.fail(n.Line, "%s: %v", f.key, err)
		return
	}
	f.resolve(r.config, filepath.Dir(r.path))
	r.config.sources[f.key] = Source{File: r.path, Line: n.Line}
}

// readEnviron applies environment variables, and returns their mistakes. A variable with the prefix of a section and an
// unknown key is a mistake.
func (c *Config) readEnviron(environ []string) []error {
	var bad []error
	known, gone := map[string]field{}, map[string]string{}
	for _, f := range all() {
		known[f.variable()] = f
	}
	for key, why := range removed {
		gone[field{key: key}.variable()] = why
	}
	old := map[string]string{}
	for key := range renamed {
		old[field{key: key}.variable()] = key
	}
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		f, ok := known[name]
		if key := old[name]; key != "" {
			if f, ok = c.current(all(), key, name); lookup(environ, f.variable()) != "" {
				continue // the variable with the new name has precedence
			}
		}
		if gone[name] != "" {
			bad = append(bad, fmt.Errorf("%s: removed: %s", name, gone[name]))
			continue
		}
		if ok {
			if err := set(f, f.in(c), value); err != nil {
				bad = append(bad, fmt.Errorf("%s: %w", name, err))
				continue
			}
			f.resolve(c, ".")
			c.sources[f.key] = Source{Variable: name}
			continue
		}
		for _, s := range sections() {
			if strings.HasPrefix(name, s.variable()+"_") {
				bad = append(bad, fmt.Errorf("%s: unknown variable%s", name, suggestVariable(name)))
			}
		}
	}
	return bad
}

// wrong returns the error for the value of a key, with the source of the value.
func (c *Config) wrong(key, message string) error {
	return fmt.Errorf("%s: %s", c.sources[key], message)
}
