package rules

import (
	"encoding"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/recluse-dev/recluse/gate/source"
	"github.com/recluse-dev/recluse/internal/editdistance"
)

// maxValues limits the values of a file, because YAML aliases can multiply them.
const maxValues = 200_000

// decoder fills Go values from YAML. Unlike the YAML package it reports mistakes by line and column, and suggests the
// closest key for a misspelled one. Fields have the tags yaml (their key) and choice (the allowed values of a text, or
// the allowed keys of a map). A struct may have a field Place, which is set to its position, and a method check, which
// is called when the struct is filled. Values of type any are skipped.
type decoder struct {
	file   string
	values int
	fields map[reflect.Type]map[string]reflect.StructField // by key, of the structs so far
}

func newDecoder(file string) *decoder {
	return &decoder{file: file, fields: map[reflect.Type]map[string]reflect.StructField{}}
}

func (d *decoder) errorf(n *yaml.Node, format string, args ...any) error {
	return &source.Error{
		File:    d.file,
		Line:    max(n.Line, 1),
		Column:  max(n.Column, 1),
		Message: fmt.Sprintf(format, args...),
	}
}

// decode fills the value to which into points.
func (d *decoder) decode(n *yaml.Node, into any) error {
	return d.value(n, reflect.ValueOf(into).Elem(), nil)
}

func (d *decoder) value(n *yaml.Node, v reflect.Value, choices []string) error {
	n = resolve(n)
	if d.values++; d.values > maxValues {
		return d.errorf(n, "too many values")
	}
	text, isText := v.Addr().Interface().(encoding.TextUnmarshaler)
	switch kind := v.Kind(); {
	case kind == reflect.Interface:
		return nil
	case isText || kind == reflect.String:
		if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
			return d.errorf(n, "expected a string")
		}
		if len(choices) > 0 && !slices.Contains(choices, n.Value) {
			return d.errorf(n, "invalid value %q: use one of %s", n.Value, strings.Join(choices, ", "))
		}
		if !isText {
			v.SetString(n.Value)
		} else if err := text.UnmarshalText([]byte(n.Value)); err != nil {
			return d.errorf(n, "%v", err)
		}
		return nil
	case kind == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return d.value(n, v.Elem(), choices)
	case kind == reflect.Struct:
		return d.object(n, v)
	case kind == reflect.Slice:
		return d.list(n, v, choices)
	}
	v.Set(reflect.MakeMap(v.Type()))
	return d.mapping(n, func(key, value *yaml.Node) error {
		if len(choices) > 0 && !slices.Contains(choices, key.Value) {
			return d.unknownKey(key, choices)
		}
		elem := reflect.New(v.Type().Elem()).Elem()
		err := d.value(value, elem, nil)
		v.SetMapIndex(reflect.ValueOf(key.Value), elem)
		return err
	})
}

// object fills a struct.
func (d *decoder) object(n *yaml.Node, v reflect.Value) error {
	fields := d.fields[v.Type()]
	if fields == nil {
		fields = map[string]reflect.StructField{}
		for _, f := range reflect.VisibleFields(v.Type()) {
			if key, ok := f.Tag.Lookup("yaml"); ok {
				fields[key] = f
			}
		}
		d.fields[v.Type()] = fields
	}
	err := d.mapping(n, func(key, value *yaml.Node) error {
		f, ok := fields[key.Value]
		if !ok {
			return d.unknownKey(key, slices.Sorted(maps.Keys(fields)))
		}
		return d.value(value, v.FieldByIndex(f.Index), strings.Fields(f.Tag.Get("choice")))
	})
	if err != nil {
		return err
	}
	if at := v.FieldByName("Place"); at.IsValid() {
		at.Set(reflect.ValueOf(place{line: n.Line, column: n.Column}))
	}
	if c, ok := v.Addr().Interface().(interface{ check() error }); ok {
		if err := c.check(); err != nil {
			return d.errorf(n, "%v", err)
		}
	}
	return nil
}

// mapping calls f for each key with its value.
func (d *decoder) mapping(n *yaml.Node, f func(key, value *yaml.Node) error) error {
	if n.Kind != yaml.MappingNode {
		return d.errorf(n, "expected a mapping (key: value)")
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if seen[key.Value] {
			return d.errorf(key, "duplicate key %q", key.Value)
		}
		seen[key.Value] = true
		if err := f(key, n.Content[i+1]); err != nil {
			return err
		}
	}
	return nil
}

// list fills a slice from a sequence, or from a single value. A list in a list is an alias: its elements count.
func (d *decoder) list(n *yaml.Node, v reflect.Value, choices []string) error {
	if n.Kind != yaml.SequenceNode {
		elem := reflect.New(v.Type().Elem()).Elem()
		if err := d.value(n, elem, choices); err != nil {
			return err
		}
		v.Set(reflect.Append(v, elem))
		return nil
	}
	if len(n.Content) == 0 {
		return d.errorf(n, "an empty list would match nothing")
	}
	for _, e := range n.Content {
		if d.values++; d.values > maxValues {
			return d.errorf(n, "too many values")
		}
		if err := d.list(resolve(e), v, choices); err != nil {
			return err
		}
	}
	return nil
}

func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	return n
}

// unknownKey returns an error that suggests the closest key, or lists all keys if none is close.
func (d *decoder) unknownKey(key *yaml.Node, names []string) error {
	distance, near := 3, ""
	for _, name := range names {
		if d := editdistance.Distance(key.Value, name, distance); d < distance {
			distance, near = d, name
		}
	}
	if near == "" {
		return d.errorf(key, "unknown key %q; known keys: %s", key.Value, strings.Join(names, ", "))
	}
	return d.errorf(key, "unknown key %q; did you mean %q?", key.Value, near)
}
