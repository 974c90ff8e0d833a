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
	path []int  // of the struct's fields
	flag string // of the limit of a run, or the bound of a quota, that the key sets; empty: it is the field itself
}

// name returns the key without its section.
func (f field) name() string {
	_, name, _ := strings.Cut(f.key, ".")
	return name
}

// limit returns the limit of a run that the key sets.
func (f field) limit(l *v1.RunLimits) v1.Limit { return f.among(l.Fields()) }

// bound returns the bound of a quota that the key sets.
func (f field) bound(q *v1.Quota) v1.Limit { return f.among(q.Fields()) }

func (f field) among(limits []v1.Limit) v1.Limit {
	return limits[slices.IndexFunc(limits, func(x v1.Limit) bool { return x.Flag == f.flag })]
}

// in gives the field of a configuration.
func (f field) in(c *Config) reflect.Value { return reflect.ValueOf(c).Elem().FieldByIndex(f.path) }

// variable is its name in the environment.
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

// quotaElsewhere is the bound of a quota that is a key of the section session: session.max_age.
const quotaElsewhere = "max_age"

// fields gives the keys of a section.
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
	for f := range s.typ.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		one := field{key: section + "." + cmp.Or(f.Tag.Get("key"), name), tag: f.Tag, typ: f.Type, path: slices.Concat(s.path, f.Index)}
		limits := strings.Fields(f.Tag.Get("limits"))
		for _, name := range limits {
			one.key, one.flag = section+"."+name, strings.ReplaceAll(name, "_", "-")
			out = append(out, one)
		}
		if len(limits) == 0 {
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

// Setting is one key as it stands.
type Setting struct {
	Key      string `json:"key"`
	Value    string `json:"value"`
	Source   string `json:"source"`
	Default  string `json:"default"`
	Variable string `json:"variable"`
	Doc      string `json:"doc"`
}

// Settings lists every key, secrets redacted, in the order of the file.
func (c *Config) Settings() []Setting {
	var out []Setting
	def := Default()
	for _, f := range all() {
		out = append(out, Setting{
			Key: f.key, Value: f.text(c), Source: c.sources[f.key].String(), Default: f.text(def), Variable: f.variable(), Doc: f.doc(),
		})
	}
	return out
}

// doc says what it is for and which values it takes.
func (f field) doc() string {
	if f.typ == reflect.TypeFor[v1.Quota]() {
		return f.bound(&v1.Quota{}).Doc + " (or none)"
	}
	if f.flag != "" {
		return f.limit(&v1.RunLimits{}).Doc
	}
	doc := f.tag.Get("doc")
	if words := strings.Fields(f.tag.Get("oneof")); len(words) > 0 {
		doc += " (" + strings.Join(words, ", ") + ")"
	}
	if f.tag.Get("none") != "" {
		doc += " (or none)"
	}
	return doc
}

// Set reports whether somebody set the key, and where.
func (c *Config) Set(key string) (Source, bool) {
	s, ok := c.sources[key]
	return s, ok
}

// suggest names the known key that is nearest to a wrong one, or what is known instead when none is near.
func suggest(wrong, section string, known []field) string {
	var names, near []string
	for _, f := range known {
		names = append(names, f.key)
		if strings.HasPrefix(f.key, section) {
			near = append(near, f.key)
		}
	}
	// The same name in another section is what people mean, rather than another name that looks like it.
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
	return "; known are " + strings.Join(near, ", ")
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
	best, least := "", 4
	for _, n := range names {
		if d := editdistance.Distance(wrong, n, least); d < least && d*2 < len(n) {
			best, least = n, d
		}
	}
	return best
}
