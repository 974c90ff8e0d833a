package agents

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"

	"github.com/tailscale/hujson"
)

// byteOrderMark is the beginning of some files that editors on Windows write.
var byteOrderMark = []byte("\xef\xbb\xbf")

// jsonFile is a JSON settings file, which may contain comments. Changes are made in its text, so that the rest stays as
// the user wrote it.
type jsonFile struct {
	path       string
	bom        bool   // the file begins with a byte order mark
	indentUnit string // one level of indentation
	root       hujson.Value
}

// parseJSON parses the content of a file; nil is a missing file.
func parseJSON(path string, data []byte) (*jsonFile, error) {
	f := &jsonFile{path: path}
	data, f.bom = bytes.CutPrefix(data, byteOrderMark)
	if len(bytes.TrimSpace(data)) == 0 {
		data = []byte("{}\n")
	}
	root, err := hujson.Parse(bytes.Clone(data))
	if err != nil {
		return nil, unusable(path, repairRemedy, "invalid JSON: %v", err)
	}
	f.root, f.indentUnit = root, "  "
	top, ok := f.root.Value.(*hujson.Object)
	if !ok {
		return nil, unusable(path, repairRemedy, "the file does not contain a JSON object")
	}
	if len(top.Members) > 0 {
		space := top.Members[0].Name.BeforeExtra
		if i := bytes.LastIndexByte(space, '\n'); i >= 0 && i+1 < len(space) && isBlank(space[i:]) {
			f.indentUnit = string(space[i+1:])
		}
	}
	return f, nil
}

// bytes returns the content of the file.
func (f *jsonFile) bytes() []byte {
	out := f.root.Pack()
	if !bytes.HasSuffix(out, []byte("\n")) && len(f.root.AfterExtra) == 0 {
		out = append(out, '\n')
	}
	if f.bom {
		out = append(bytes.Clone(byteOrderMark), out...)
	}
	return out
}

// member returns the index and the value of a member of an object. Of duplicate members it returns the last, as JSON
// decoders do.
func member(o *hujson.Object, name string) (int, *hujson.Value) {
	for i := len(o.Members) - 1; i >= 0; i-- {
		if lit, ok := o.Members[i].Name.Value.(hujson.Literal); ok && lit.String() == name {
			return i, &o.Members[i].Value
		}
	}
	return -1, nil
}

// object returns the object at a path. If it is missing, object creates it, or returns nil without create.
func (f *jsonFile) object(create bool, path ...string) (*hujson.Object, error) {
	o := f.root.Value.(*hujson.Object) //nolint:forcetypeassert // parseJSON has checked it
	for i, name := range path {
		_, v := member(o, name)
		if v == nil {
			if !create {
				return nil, nil
			}
			next := &hujson.Object{}
			f.append(o, i, name, next)
			o = next
			continue
		}
		next, ok := v.Value.(*hujson.Object)
		if !ok {
			return nil, unusable(f.path, repairRemedy, "%s is not an object", strings.Join(path[:i+1], "."))
		}
		o = next
	}
	return o, nil
}

// set sets the value at a path, and reports whether that changed anything. An existing object keeps the members that
// value does not have.
func (f *jsonFile) set(value any, path ...string) (bool, error) {
	last := len(path) - 1
	o, err := f.object(true, path[:last]...)
	if err != nil {
		return false, err
	}
	if _, v := member(o, path[last]); v != nil {
		return f.merge(v, f.value(value, last+1), last+1), nil
	}
	f.append(o, last, path[last], f.value(value, last+1))
	return true, nil
}

// merge changes v so that it contains want, and reports whether that changed anything. Other members of v stay.
func (f *jsonFile) merge(v *hujson.Value, want hujson.ValueTrimmed, depth int) (changed bool) {
	switch want := want.(type) {
	case *hujson.Object:
		have, ok := v.Value.(*hujson.Object)
		if !ok {
			break
		}
		for i := range want.Members {
			name := want.Members[i].Name.Value.(hujson.Literal).String() //nolint:forcetypeassert // names are literals
			if _, old := member(have, name); old != nil {
				changed = f.merge(old, want.Members[i].Value.Value, depth+1) || changed
				continue
			}
			f.append(have, depth, name, want.Members[i].Value.Value)
			changed = true
		}
		return changed
	case *hujson.Array:
		have, ok := v.Value.(*hujson.Array)
		if !ok || len(have.Elements) != len(want.Elements) {
			break
		}
		for i := range want.Elements {
			changed = f.merge(&have.Elements[i], want.Elements[i].Value, depth+1) || changed
		}
		return changed
	}
	if equalValue(v, want) {
		return false
	}
	v.Value = want
	return true
}

// remove removes a value, and objects that become empty. It reports whether the value existed.
func (f *jsonFile) remove(path ...string) (bool, error) {
	last := len(path) - 1
	o, err := f.object(false, path[:last]...)
	if err != nil || o == nil {
		return false, err
	}
	i, v := member(o, path[last])
	if v == nil {
		return false, nil
	}
	o.Members = removeElement(o.Members, i, &o.AfterExtra,
		func(m *hujson.ObjectMember) *hujson.Value { return &m.Name },
		func(m *hujson.ObjectMember) *hujson.Value { return &m.Value })
	if last > 0 && len(o.Members) == 0 && isBlank(o.AfterExtra) {
		_, err = f.remove(path[:last]...)
	}
	return true, err
}

// list returns the array at a path. If it is missing, list creates it, or returns nil without create.
func (f *jsonFile) list(create bool, path ...string) (*hujson.Array, error) {
	last := len(path) - 1
	o, err := f.object(create, path[:last]...)
	if err != nil || o == nil {
		return nil, err
	}
	_, v := member(o, path[last])
	if v == nil {
		if !create {
			return nil, nil
		}
		a := &hujson.Array{}
		f.append(o, last, path[last], a)
		return a, nil
	}
	a, ok := v.Value.(*hujson.Array)
	if !ok {
		return nil, unusable(f.path, repairRemedy, "%s is not a list", strings.Join(path, "."))
	}
	return a, nil
}

// setEntry sets the one element of a list for which isOurs returns true, and reports whether that changed anything. It
// removes further elements of that kind. With a nil value it removes all of them.
func (f *jsonFile) setEntry(value any, isOurs func(raw map[string]any) bool, path ...string) (changed bool, err error) {
	a, err := f.list(value != nil, path...)
	if err != nil || a == nil {
		return false, err
	}
	found := false
	for i := 0; i < len(a.Elements); i++ {
		var raw map[string]any
		if json.Unmarshal(standardJSON(&a.Elements[i]), &raw) != nil || !isOurs(raw) {
			continue
		}
		switch {
		case value == nil || found:
			a.Elements = removeElement(a.Elements, i, &a.AfterExtra,
				func(e *hujson.Value) *hujson.Value { return e },
				func(e *hujson.Value) *hujson.Value { return e })
			i--
			changed = true
		default:
			changed = f.merge(&a.Elements[i], f.value(value, len(path)+1), len(path)+1) || changed
		}
		found = true
	}
	if value == nil {
		if changed && len(a.Elements) == 0 && isBlank(a.AfterExtra) {
			_, err = f.remove(path...)
		}
		return changed, err
	}
	if !found {
		e := hujson.Value{Value: f.value(value, len(path)+1)}
		var last *hujson.Value
		if n := len(a.Elements); n > 0 {
			last = &a.Elements[n-1]
		}
		f.placeAfter(last, last, &e, &e, &a.AfterExtra, len(path))
		a.Elements = append(a.Elements, e)
		changed = true
	}
	return changed, nil
}

// append adds a member after the others, with the same indentation.
func (f *jsonFile) append(o *hujson.Object, depth int, name string, value hujson.ValueTrimmed) {
	m := hujson.ObjectMember{
		Name:  hujson.Value{Value: hujson.String(name)},
		Value: hujson.Value{BeforeExtra: hujson.Extra(" "), Value: value},
	}
	var first, last *hujson.Value
	if n := len(o.Members); n > 0 {
		first, last = &o.Members[n-1].Name, &o.Members[n-1].Value
	}
	f.placeAfter(first, last, &m.Name, &m.Value, &o.AfterExtra, depth)
	o.Members = append(o.Members, m)
}

// placeAfter sets the white space of a new element at the end of a list or object. first and last are the values with
// which the previous element begins and ends; nil: there is none. A comment after the previous element stays there, and
// a trailing comma stays.
func (f *jsonFile) placeAfter(first, last, newFirst, newLast *hujson.Value, after *hujson.Extra, depth int) {
	newFirst.BeforeExtra = f.indent(depth + 1)
	if first != nil {
		if i := bytes.LastIndexByte(first.BeforeExtra, '\n'); i >= 0 && isBlank(first.BeforeExtra[i:]) {
			newFirst.BeforeExtra = bytes.Clone(first.BeforeExtra[i:])
		}
		if last.AfterExtra != nil {
			newLast.AfterExtra = hujson.Extra{}
		}
	}
	switch {
	case !isBlank(*after):
		newFirst.BeforeExtra = append(bytes.TrimRight(*after, " \t\r\n"), newFirst.BeforeExtra...)
		*after = f.indent(depth)
	case !bytes.ContainsRune(*after, '\n'):
		*after = f.indent(depth)
	}
}

// removeElement removes an element. Comments before it belong to the user, and stay.
func removeElement[T any](list []T, i int, after *hujson.Extra, first, last func(*T) *hujson.Value) []T {
	gone, tail := first(&list[i]).BeforeExtra, i == len(list)-1
	if tail && i > 0 && last(&list[i]).AfterExtra == nil {
		last(&list[i-1]).AfterExtra = nil // no comma after the new last element
	}
	switch {
	case !isBlank(gone) && tail:
		*after = append(bytes.TrimRight(bytes.Clone(gone), " \t\r\n"), *after...)
		if !bytes.HasPrefix((*after)[len(bytes.TrimRight(gone, " \t\r\n")):], []byte("\n")) {
			*after = append(*after, '\n')
		}
	case !isBlank(gone):
		next := first(&list[i+1])
		next.BeforeExtra = append(bytes.TrimRight(bytes.Clone(gone), " \t\r\n"), next.BeforeExtra...)
	case tail && i == 0 && isBlank(*after):
		*after = nil
	}
	return append(list[:i], list[i+1:]...)
}

func isBlank(e hujson.Extra) bool { return len(bytes.TrimSpace(e)) == 0 }

func (f *jsonFile) indent(depth int) hujson.Extra {
	return hujson.Extra("\n" + strings.Repeat(f.indentUnit, depth))
}

// value returns v as parsed JSON that is indented for its depth.
func (f *jsonFile) value(v any, depth int) hujson.ValueTrimmed {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent(strings.Repeat(f.indentUnit, depth), f.indentUnit)
	if err := e.Encode(v); err != nil {
		panic(err) // all values are of this package
	}
	parsed, err := hujson.Parse(b.Bytes())
	if err != nil {
		panic(err)
	}
	return parsed.Value
}

// standardJSON returns a value as JSON without comments.
func standardJSON(v *hujson.Value) []byte {
	c := v.Clone()
	c.Minimize()
	return c.Pack()
}

// equalValue reports whether two values are equal, however they are written.
func equalValue(v *hujson.Value, want hujson.ValueTrimmed) bool {
	var a, b any
	return json.Unmarshal(standardJSON(v), &a) == nil &&
		json.Unmarshal(standardJSON(&hujson.Value{Value: want}), &b) == nil &&
		reflect.DeepEqual(a, b)
}
