package config

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"sync"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/editdistance"
)

// field is one key, or one section.
type field struct {
	key  string // section.name, or section
	tag  reflect.StructTag
	typ  reflect.Type
	path []int  // index path of the struct field in Config
	flag string // flag of the run limit or quota value that the key sets; empty: the key sets the struct field itself
}

// name returns the key without its section.
func (f field) name() string {
	_, name, _ := strings.Cut(f.key, ".")
	return name
}

// limit returns the run limit that the key sets.
func (f field) limit(l *v1.RunLimits) v1.Limit { return f.among(l.Fields()) }

// bound returns the quota value that the key sets.
func (f field) bound(q *v1.Quota) v1.Limit { return f.among(q.Fields()) }

func (f field) among(limits []v1.Limit) v1.Limit {
	return limits[slices.IndexFunc(limits, func(x v1.Limit) bool { return x.Flag == f.flag })]
}

// in returns the struct field of the key in c.
func (f field) in(c *Config) reflect.Value { return reflect.ValueOf(c).Elem().FieldByIndex(f.path) }

// variable returns the environment variable of the key.
func (f field) variable() string {
	return prefix + strings.ToUpper(strings.ReplaceAll(f.key, ".", "_"))
}

// sections returns the sections, in the order of the struct. The caller must not change them.
var sections = sync.OnceValue(func() []field {
	var out []field
	for f := range reflect.TypeFor[Config]().Fields() {
		if key := f.Tag.Get("key"); key != "" {
			out = append(out, field{key: key, tag: f.Tag, typ: f.Type, path: f.Index})
		}
	}
	return out
})

// quotaElsewhere is the quota value whose key is in the section session: session.max_age.
const quotaElsewhere = "max_age"

// fields returns the keys of a section.
func fields(section string) []field {
	s, ok := find(sections(), section)
	if !ok {
		return nil
	}
	var out []field
	if s.typ == reflect.TypeFor[v1.Quota]() {
		for _, b := range (&v1.Quota{}).Fields() {
			if b.Name != quotaElsewhere {
				out = append(out, field{key: section + "." + b.Name, typ: s.typ, path: s.path, flag: b.Flag})
			}
		}
		return out
	}
	for _, f := range reflect.VisibleFields(s.typ) {
		if f.Anonymous { // its fields follow
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		one := field{
			key:  section + "." + cmp.Or(f.Tag.Get("key"), name),
			tag:  f.Tag,
			typ:  f.Type,
			path: slices.Concat(s.path, f.Index),
		}
		if f.Type != reflect.TypeFor[v1.RunLimits]() {
			out = append(out, one)
			continue
		}
		for _, l := range (&v1.RunLimits{}).Fields() {
			one.key, one.flag = section+"."+strings.ReplaceAll(l.Flag, "-", "_"), l.Flag
			out = append(out, one)
		}
	}
	return out
}

// all returns every key. The caller must not change them.
var all = sync.OnceValue(func() []field {
	var out []field
	for _, s := range sections() {
		out = append(out, fields(s.key)...)
	}
	return out
})

func find(list []field, key string) (field, bool) {
	i := slices.IndexFunc(list, func(f field) bool { return f.key == key })
	if i < 0 {
		return field{}, false
	}
	return list[i], true
}

// Setting is one key with its current value.
type Setting struct {
	Key      string `json:"key"`
	Value    string `json:"value"`
	Source   string `json:"source"`
	Default  string `json:"default"`
	Variable string `json:"variable"`
	Doc      string `json:"doc"`
}

// Settings returns every key in the order of docs/CONFIG.md. Secrets are redacted.
func (c *Config) Settings() []Setting {
	var out []Setting
	def := Default()
	for _, f := range all() {
		out = append(out, Setting{
			Key:      f.key,
			Value:    f.text(c),
			Source:   c.sources[f.key].String(),
			Default:  f.text(def),
			Variable: f.variable(),
			Doc:      f.doc(),
		})
	}
	return out
}

// doc returns the description of the key, with the valid values.
func (f field) doc() string {
	if f.typ == reflect.TypeFor[v1.Quota]() {
		return withNone(strings.Replace(f.bound(&v1.Quota{}).Doc, ", in bytes", "", 1)) // a key takes any unit
	}
	if f.flag != "" {
		return f.limit(&v1.RunLimits{}).Doc
	}
	doc := f.tag.Get("doc")
	if words := strings.Fields(f.tag.Get("oneof")); len(words) > 0 {
		doc += " (" + strings.Join(words, ", ") + ")"
	}
	if f.tag.Get("none") != "" {
		doc = withNone(doc)
	}
	return doc
}

// withNone adds the meaning of the value none to a description, unless it is there.
func withNone(doc string) string {
	if strings.Contains(doc, "none: ") {
		return doc
	}
	return doc + "; none: unlimited"
}

// Set reports whether the file or the environment sets the key, and where.
func (c *Config) Set(key string) (Source, bool) {
	s, ok := c.sources[key]
	return s, ok
}

// suggest returns the end of an error message about an unknown key: the nearest known key, or all keys of the section.
func suggest(wrong, section string, known []field) string {
	var names, near []string
	for _, f := range known {
		names = append(names, f.key)
		if strings.HasPrefix(f.key, section) {
			near = append(near, f.key)
		}
	}
	// The same name in another section is more likely than a similar name.
	if _, name, ok := strings.Cut(wrong, "."); ok {
		for _, other := range names {
			if strings.HasSuffix(other, "."+name) {
				return "; did you mean " + other + "?"
			}
		}
	}
	if best := nearest(wrong, names); best != "" {
		return "; did you mean " + best + "?"
	}
	return "; want one of " + strings.Join(near, ", ")
}

func suggestVariable(wrong string) string {
	var names []string
	for _, f := range all() {
		names = append(names, f.variable())
	}
	if best := nearest(wrong, names); best != "" {
		return "; did you mean " + best + "?"
	}
	return ""
}

// nearest returns the name with the smallest edit distance, if that is small for its length, or "".
func nearest(wrong string, names []string) string {
	best, distance := "", 4
	for _, n := range names {
		if d := editdistance.Distance(wrong, n, distance); d < distance && d*2 < len(n) {
			best, distance = n, d
		}
	}
	return best
}
