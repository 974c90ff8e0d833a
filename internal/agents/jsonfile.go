package agents

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"

	"github.com/tailscale/hujson"
)

// byteOrderMark begins some files that editors on Windows have written.
var byteOrderMark = []byte("\xef\xbb\xbf")

// jsonFile is a file of settings in JSON, perhaps with comments. What is changed in it is changed in its text, so that the rest
// stays as its owner has written it.
type jsonFile struct {
	path string
	mark bool   // it begins with a byte order mark
	unit string // of its indentation
	root hujson.Value
}

// parseJSON reads a file's content; nil is a file that is not there.
func parseJSON(path string, data []byte) (*jsonFile, error) {
	f := &jsonFile{path: path}
	data, f.mark = bytes.CutPrefix(data, byteOrderMark)
	if len(bytes.TrimSpace(data)) == 0 {
		data = []byte("{}\n")
	}
	root, err := hujson.Parse(bytes.Clone(data))
	if err != nil {
		return nil, unusable(path, "mend it, or move it away", "it is no JSON: %v", err)
	}
	f.root, f.unit = root, "  "
	top, ok := f.root.Value.(*hujson.Object)
	if !ok {
		return nil, unusable(path, "mend it, or move it away", "it holds no object")
	}
	if len(top.Members) > 0 {
		space := top.Members[0].Name.BeforeExtra
		if i := bytes.LastIndexByte(space, '\n'); i >= 0 && i+1 < len(space) && blank(space[i:]) {
			f.unit = string(space[i+1:])
		}
	}
	return f, nil
}

// bytes gives the content back.
func (f *jsonFile) bytes() []byte {
	out := f.root.Pack()
	if !bytes.HasSuffix(out, []byte("\n")) && len(f.root.AfterExtra) == 0 {
		out = append(out, '\n')
	}
	if f.mark {
		out = append(bytes.Clone(byteOrderMark), out...)
	}
	return out
}

// member finds a member of an object; one that is there twice is the last, as readers take it.
func member(o *hujson.Object, name string) (int, *hujson.Value) {
	for i := len(o.Members) - 1; i >= 0; i-- {
		if lit, ok := o.Members[i].Name.Value.(hujson.Literal); ok && lit.String() == name {
			return i, &o.Members[i].Value
		}
	}
	return -1, nil
}

// object finds the object at a path, or makes it. Without create it may give nil.
func (f *jsonFile) object(create bool, path ...string) (*hujson.Object, error) {
	o := f.root.Value.(*hujson.Object) //nolint:forcetypeassert // parseJSON has looked
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
			return nil, unusable(f.path, "mend it, or move it away", "%s is no object", strings.Join(path[:i+1], "."))
		}
		o = next
	}
	return o, nil
}

// set puts a value at a path and reports whether that changed anything. What is there already keeps the members that the value does not name.
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

// merge makes a value say what want says, reports whether that changed anything, and leaves what its owner has put beside.
func (f *jsonFile) merge(v *hujson.Value, want hujson.ValueTrimmed, depth int) (changed bool) {
	switch want := want.(type) {
	case *hujson.Object:
		have, ok := v.Value.(*hujson.Object)
		if !ok {
			break
		}
		for i := range want.Members {
			name := want.Members[i].Name.Value.(hujson.Literal).String() //nolint:forcetypeassert // names are
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
	if same(v, want) {
		return false
	}
	v.Value = want
	return true
}

// remove takes a value away, and objects that are empty without it, and reports whether it was there.
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
	o.Members = cut(o.Members, i, &o.AfterExtra, func(m *hujson.ObjectMember) *hujson.Value { return &m.Name }, func(m *hujson.ObjectMember) *hujson.Value { return &m.Value })
	if last > 0 && len(o.Members) == 0 && blank(o.AfterExtra) {
		_, err = f.remove(path[:last]...)
	}
	return true, err
}

// list finds the array at a path, or makes it. Without create it may give nil.
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
		return nil, unusable(f.path, "mend it, or move it away", "%s is no list", strings.Join(path, "."))
	}
	return a, nil
}

// entry keeps exactly one element of a list for which mine holds, and reports whether that changed anything. A nil value keeps none.
func (f *jsonFile) entry(value any, mine func(raw map[string]any) bool, path ...string) (changed bool, err error) {
	a, err := f.list(value != nil, path...)
	if err != nil || a == nil {
		return false, err
	}
	found := false
	for i := 0; i < len(a.Elements); i++ {
		var raw map[string]any
		if json.Unmarshal(plain(&a.Elements[i]), &raw) != nil || !mine(raw) {
			continue
		}
		switch {
		case value == nil || found:
			a.Elements = cut(a.Elements, i, &a.AfterExtra, func(e *hujson.Value) *hujson.Value { return e }, func(e *hujson.Value) *hujson.Value { return e })
			i--
			changed = true
		default:
			changed = f.merge(&a.Elements[i], f.value(value, len(path)+1), len(path)+1) || changed
		}
		found = true
	}
	if value == nil {
		if changed && len(a.Elements) == 0 && blank(a.AfterExtra) {
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
		f.follow(last, last, &e, &e, &a.AfterExtra, len(path))
		a.Elements = append(a.Elements, e)
		changed = true
	}
	return changed, nil
}

// append adds a member behind the others, in their manner.
func (f *jsonFile) append(o *hujson.Object, depth int, name string, value hujson.ValueTrimmed) {
	m := hujson.ObjectMember{Name: hujson.Value{Value: hujson.String(name)}, Value: hujson.Value{BeforeExtra: hujson.Extra(" "), Value: value}}
	var first, last *hujson.Value
	if n := len(o.Members); n > 0 {
		first, last = &o.Members[n-1].Name, &o.Members[n-1].Value
	}
	f.follow(first, last, &m.Name, &m.Value, &o.AfterExtra, depth)
	o.Members = append(o.Members, m)
}

// follow puts a new element behind the last one, if there is one: first and last are where an element begins and ends. A comment that stood
// behind the old one stays there, and so does a comma behind the last.
func (f *jsonFile) follow(first, last, newFirst, newLast *hujson.Value, after *hujson.Extra, depth int) {
	newFirst.BeforeExtra = f.indent(depth + 1)
	if first != nil {
		if i := bytes.LastIndexByte(first.BeforeExtra, '\n'); i >= 0 && blank(first.BeforeExtra[i:]) {
			newFirst.BeforeExtra = bytes.Clone(first.BeforeExtra[i:])
		}
		if last.AfterExtra != nil {
			newLast.AfterExtra = hujson.Extra{}
		}
	}
	switch {
	case !blank(*after):
		newFirst.BeforeExtra = append(bytes.TrimRight(*after, " \t\r\n"), newFirst.BeforeExtra...)
		*after = f.indent(depth)
	case !bytes.ContainsRune(*after, '\n'):
		*after = f.indent(depth)
	}
}

// cut removes an element. Comments before it are its owner's, and stay.
func cut[T any](list []T, i int, after *hujson.Extra, first, last func(*T) *hujson.Value) []T {
	gone, tail := first(&list[i]).BeforeExtra, i == len(list)-1
	if tail && i > 0 && last(&list[i]).AfterExtra == nil {
		last(&list[i-1]).AfterExtra = nil // no comma behind the one that is last now
	}
	switch {
	case !blank(gone) && tail:
		*after = append(bytes.TrimRight(bytes.Clone(gone), " \t\r\n"), *after...)
		if !bytes.HasPrefix((*after)[len(bytes.TrimRight(gone, " \t\r\n")):], []byte("\n")) {
			*after = append(*after, '\n')
		}
	case !blank(gone):
		next := first(&list[i+1])
		next.BeforeExtra = append(bytes.TrimRight(bytes.Clone(gone), " \t\r\n"), next.BeforeExtra...)
	case tail && i == 0 && blank(*after):
		*after = nil
	}
	return append(list[:i], list[i+1:]...)
}

func blank(e hujson.Extra) bool { return len(bytes.TrimSpace(e)) == 0 }

func (f *jsonFile) indent(depth int) hujson.Extra {
	return hujson.Extra("\n" + strings.Repeat(f.unit, depth))
}

// value makes text of a value, indented for its place.
func (f *jsonFile) value(v any, depth int) hujson.ValueTrimmed {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent(strings.Repeat(f.unit, depth), f.unit)
	if err := e.Encode(v); err != nil {
		panic(err) // values of our own
	}
	parsed, err := hujson.Parse(b.Bytes())
	if err != nil {
		panic(err)
	}
	return parsed.Value
}

// plain is a value as standard JSON.
func plain(v *hujson.Value) []byte {
	c := v.Clone()
	c.Minimize()
	return c.Pack()
}

// same reports whether a value is there already, however it is written.
func same(v *hujson.Value, want hujson.ValueTrimmed) bool {
	var a, b any
	return json.Unmarshal(plain(v), &a) == nil && json.Unmarshal(plain(&hujson.Value{Value: want}), &b) == nil && reflect.DeepEqual(a, b)
}
