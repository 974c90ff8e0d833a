// Package schema derives JSON schemas from Go types, for the HTTP API and for MCP.
//
// Tags of struct fields add what the type does not contain: doc is the description, enum the values, separated by
// commas, minimum and maximum the bounds of a number. A field without omitempty or omitzero is required.
package schema

import (
	"cmp"
	"encoding"
	"encoding/json"
	"iter"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
)

// Typed is implemented by types whose JSON has the form of another type.
type Typed interface{ JSONType() reflect.Type }

// Set derives schemas.
type Set struct {
	// Named collects the schemas of named structs. Other schemas refer to them by Prefix and name. Nil: every schema is
	// self-contained.
	Named  map[string]*jsonschema.Schema
	Prefix string
}

// Of returns the schema of a type.
func (s *Set) Of(t reflect.Type) *jsonschema.Schema {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	name := t.Name()
	if typed, ok := reflect.Zero(t).Interface().(Typed); ok {
		t = typed.JSONType()
	}
	switch {
	case t == reflect.TypeFor[json.RawMessage](), t.Kind() == reflect.Interface:
		// An empty schema would be written as true, which some clients reject.
		return &jsonschema.Schema{Description: "any JSON value"}
	case t == reflect.TypeFor[time.Time]():
		return &jsonschema.Schema{Type: "string", Format: "date-time"}
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return &jsonschema.Schema{Type: "string"}
	}
	switch t.Kind() {
	case reflect.Bool:
		return &jsonschema.Schema{Type: "boolean"}
	case reflect.String:
		return &jsonschema.Schema{Type: "string"}
	case reflect.Float32, reflect.Float64:
		return &jsonschema.Schema{Type: "number", Format: "double"}
	case reflect.Int, reflect.Int64:
		return &jsonschema.Schema{Type: "integer", Format: "int64"}
	case reflect.Uint32, reflect.Uint64:
		return &jsonschema.Schema{Type: "integer", Minimum: new(0.0)}
	case reflect.Map:
		return &jsonschema.Schema{Type: "object", AdditionalProperties: s.Of(t.Elem())}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return &jsonschema.Schema{Type: "string", ContentEncoding: "base64"}
		}
		return &jsonschema.Schema{Type: "array", Items: s.Of(t.Elem())}
	case reflect.Struct:
		if s.Named == nil || name == "" {
			return s.object(t)
		}
		name = strings.ToUpper(name[:1]) + name[1:]
		if s.Named[name] == nil {
			s.Named[name] = &jsonschema.Schema{} // a type may contain itself
			*s.Named[name] = *s.object(t)
		}
		return &jsonschema.Schema{Ref: s.Prefix + name}
	}
	panic("no schema for " + t.String())
}

// object returns the schema of a struct. It includes the fields of embedded structs, as in package json. An embedded
// map stands for fields with other names.
func (s *Set) object(t reflect.Type) *jsonschema.Schema {
	out := &jsonschema.Schema{
		Type:                 "object",
		Properties:           map[string]*jsonschema.Schema{},
		AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}},
	}
	for f := range t.Fields() {
		if f.Anonymous && f.Type.Kind() == reflect.Map {
			out.AdditionalProperties = s.Of(f.Type.Elem())
		}
	}
	for f, name := range fields(t) {
		p := s.Of(f.Type)
		annotate(p, f)
		out.Properties[name] = p
		out.PropertyOrder = append(out.PropertyOrder, name)
		if !required(f) {
			continue
		}
		out.Required = append(out.Required, name)
		if f.Type.Kind() == reflect.Pointer && p.Type != "" {
			p.Type, p.Types = "", []string{p.Type, "null"}
		}
	}
	return out
}

// fields iterates over the fields of a struct that are in its JSON, and their names there.
func fields(t reflect.Type) iter.Seq2[reflect.StructField, string] {
	return func(yield func(reflect.StructField, string) bool) {
		for _, f := range reflect.VisibleFields(t) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "-" || !f.IsExported() || f.Anonymous && name == "" {
				continue
			}
			if !yield(f, name) {
				return
			}
		}
	}
}

// required reports whether a field must be in the JSON of its struct.
func required(f reflect.StructField) bool {
	_, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	return !strings.Contains(options, "omit")
}

// RequiredField is a field that the JSON of a struct must have.
type RequiredField struct {
	Name  string // name in JSON
	Index []int  // for reflect.Value.FieldByIndex
}

// requiredFields caches the results of Required by type: every request needs them, and finding the fields costs 25
// allocations.
var requiredFields sync.Map

// Required returns the fields that the JSON of a struct must have.
func Required(t reflect.Type) []RequiredField {
	if known, ok := requiredFields.Load(t); ok {
		return known.([]RequiredField)
	}
	var out []RequiredField
	for f, name := range fields(t) {
		if required(f) {
			out = append(out, RequiredField{Name: name, Index: f.Index})
		}
	}
	requiredFields.Store(t, out)
	return out
}

// Enum returns the values in the enum tag of a field. name is the field's name in JSON.
func Enum(t reflect.Type, name string) []string {
	for f, n := range fields(t) {
		if n == name {
			return strings.Split(f.Tag.Get("enum"), ",")
		}
	}
	return nil
}

// annotate adds the contents of the field's tags to its schema.
func annotate(p *jsonschema.Schema, f reflect.StructField) {
	p.Description = cmp.Or(f.Tag.Get("doc"), p.Description)
	if values := f.Tag.Get("enum"); values != "" {
		for v := range strings.SplitSeq(values, ",") {
			p.Enum = append(p.Enum, v)
		}
	}
	if n, err := strconv.ParseFloat(f.Tag.Get("minimum"), 64); err == nil {
		p.Minimum = &n
	}
	if n, err := strconv.ParseFloat(f.Tag.Get("maximum"), 64); err == nil {
		p.Maximum = &n
	}
}
