package rules

import (
	"slices"

	"mvdan.cc/sh/v3/syntax"
)

// variable is what the analysis knows about a shell variable.
type variable struct {
	values []string // the texts it may have
	array  []string // its elements, if it is an array
}

// scope is a layer of variables. A branch writes to its own layer, which is merged afterwards.
type scope struct {
	parent *scope
	vars   map[string]variable
}

func (s *scope) get(name string) (variable, bool) {
	for ; s != nil; s = s.parent {
		if v, ok := s.vars[name]; ok {
			return v, true
		}
	}
	return variable{}, false
}

// set replaces the possible values of a variable.
func (sh *shell) set(name string, values ...string) { sh.vars.vars[name] = variable{values: values} }

// branch runs f on a new layer of variables; afterwards each variable may have its old or its new value.
func (sh *shell) branch(f func()) {
	cwd := sh.cwd
	sh.vars = &scope{parent: sh.vars, vars: map[string]variable{}}
	f()
	top := sh.vars
	sh.vars = top.parent
	for name, v := range top.vars {
		if old, ok := sh.vars.get(name); ok {
			v.values = union(old.values, v.values)
		}
		sh.vars.vars[name] = v
	}
	if sh.cwd != cwd {
		sh.cwd = ""
	}
}

// union returns the values of both, or a hole if they are too many.
func union(a, b []string) []string {
	out := slices.Clone(a)
	for _, v := range b {
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	if len(out) > maxAlternatives {
		return []string{holeText}
	}
	return out
}

// cross joins each text of a with each text of b, or returns a hole if they are too many.
func cross(a, b []string) []string {
	if len(a)*len(b) > maxAlternatives {
		return []string{holeText}
	}
	out := make([]string, 0, len(a)*len(b))
	for _, x := range a {
		for _, y := range b {
			if len(x)+len(y) > maxOutput {
				return []string{holeText}
			}
			out = append(out, x+y)
		}
	}
	return out
}

// assign sets a variable as an assignment in the code does.
func (sh *shell) assign(as *syntax.Assign) {
	if as.Naked {
		return
	}
	name := as.Name.Value
	old, exists := sh.vars.get(name)
	if as.Array != nil {
		var elems []string
		if as.Append {
			elems = slices.Clone(old.array)
		}
		for _, e := range as.Array.Elems {
			if e.Value != nil {
				elems = slices.Concat(append([][]string{elems}, sh.argvs([]*syntax.Word{e.Value})...)...)
			}
		}
		v := variable{array: elems, values: []string{""}}
		if len(elems) > 0 {
			v.values = elems[:1]
		}
		sh.vars.vars[name] = v
		return
	}
	values := sh.values(as.Value)
	if as.Index != nil {
		values = []string{holeText}
	}
	if as.Append && exists {
		values = cross(old.values, values)
	} else if as.Append {
		values = cross([]string{holeText}, values)
	}
	for _, v := range values {
		sh.a.text(name+"="+v, sh.place(as))
	}
	sh.set(name, values...)
}
