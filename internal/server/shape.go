package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// maxDepth is how deep JSON may be nested. Nothing of ours needs more than five.
const maxDepth = 64

// checkShape refuses what package json would take without a word, before anything is made of it: JSON that is nested deeper than maxDepth, a
// name that an object has twice, of which the last would count, and a field of t whose name is written in another case. What is no JSON is
// left to package json. With t nil there may be any names.
func checkShape(raw []byte, t reflect.Type) error {
	levels := make([]level, 0, 8)
	top := &level{value: t}
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '"':
			end := endOfString(raw, i)
			if top.naming {
				if err := top.name(raw[i:end], i); err != nil {
					return err
				}
			}
			i = end - 1
		case '{', '[':
			if len(levels) == maxDepth {
				return misshapen("the JSON is nested deeper than %d, at byte %d", maxDepth, i)
			}
			levels = append(levels, inside(top.value, raw[i] == '{'))
			top = &levels[len(levels)-1]
		case '}', ']':
			if len(levels) < 2 {
				return nil // what is behind it is refused later
			}
			levels = levels[:len(levels)-1]
			top = &levels[len(levels)-1]
		case ',':
			top.naming = top.object
		}
	}
	return nil
}

func misshapen(format string, args ...any) error {
	return &v1.Error{Code: v1.CodeInvalidJSON, Op: "read request", Message: fmt.Sprintf(format, args...)}
}

// endOfString gives where the string that begins at i ends, its quote included.
func endOfString(raw []byte, i int) int {
	for i++; i < len(raw); i++ {
		switch raw[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(raw)
}

// level is an object or a list that is being read.
type level struct {
	object bool
	naming bool                    // a name of the object comes next
	seen   map[string]bool         // names of the object
	fields map[string]reflect.Type // of the object; nil: it may have any names
	value  reflect.Type            // of what comes next; nil: anything
}

// inside gives the level of a value of type t.
func inside(t reflect.Type, object bool) level {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	l := level{object: object, naming: object}
	if t == nil || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) { // which reads itself
		return l
	}
	switch t.Kind() {
	case reflect.Struct:
		l.fields = fieldsOf(t)
	case reflect.Map, reflect.Slice, reflect.Array:
		l.value = t.Elem()
	}
	return l
}

// name takes the name of what comes next, which begins at byte at.
func (l *level) name(quoted []byte, at int) error {
	l.naming = false
	name := unquoted(quoted)
	if l.seen[name] {
		return misshapen("field %q stands there twice, at byte %d", name, at)
	}
	if l.seen == nil {
		l.seen = map[string]bool{}
	}
	l.seen[name] = true
	if l.fields == nil {
		return nil
	}
	l.value = l.fields[name]
	if l.value != nil {
		return nil
	}
	for field := range l.fields {
		if strings.EqualFold(field, name) {
			return &v1.Error{Code: v1.CodeUnknownField, Op: "read request", Message: fmt.Sprintf("there is no field %q here", name), Remedy: fmt.Sprintf("it is written %q", field)}
		}
	}
	return nil // which package json refuses
}

// unquoted gives what a string of JSON says. One that is no JSON is as it is, until package json refuses it.
func unquoted(quoted []byte) (text string) {
	if bytes.IndexByte(quoted, '\\') < 0 || json.Unmarshal(quoted, &text) != nil {
		return string(bytes.Trim(quoted, `"`))
	}
	return text
}

// knownFields has the fields of types that were asked for.
var knownFields sync.Map // reflect.Type → map[string]reflect.Type

// fieldsOf gives the fields of a struct by their names in JSON.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	if known, ok := knownFields.Load(t); ok {
		return known.(map[string]reflect.Type)
	}
	out := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || !f.IsExported() || f.Anonymous && name == "" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		out[name] = f.Type
	}
	knownFields.Store(t, out)
	return out
}
