package gate

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

const (
	// maxAlternatives is how many values of a variable, or argument lists of a command, are followed.
	maxAlternatives = 16
	// maxIterations is how many rounds of a loop over a known list are followed.
	maxIterations = 32
	// maxOutput is how much of what commands write is followed.
	maxOutput = 64 << 10
	// maxCalls is how deep functions calling functions are followed.
	maxCalls = 12
)

// stream is what a command reads or writes: text with holes, and who wrote it.
type stream struct {
	text string
	from []string
}

// variable is what is known of a shell variable.
type variable struct {
	values []string // the texts it may have
	array  []string // its elements, if it is an array
}

// scope is a layer of variables; a branch writes to a layer of its own, which is then merged.
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

// shell walks a script the way bash would run it, with what can be known by reading.
type shell struct {
	a       *analysis
	vars    *scope
	funcs   map[string]*syntax.Stmt
	called  map[string]bool
	aliases map[string]string
	args    []string // positional parameters; nil: unknown
	cwd     string   // empty: unknown
	nesting int      // code in code
	calls   int      // functions in functions
	fixed   *place   // where nested code stands in the outer one; nil: this is the outer one
}

func newShell(a *analysis, fixed *place, nesting int) *shell {
	return &shell{
		a: a, fixed: fixed, nesting: nesting,
		vars:  &scope{vars: map[string]variable{"HOME": {values: []string{"~"}}}},
		funcs: map[string]*syntax.Stmt{}, called: map[string]bool{}, aliases: map[string]string{},
	}
}

// place gives the position to report for a node.
func (sh *shell) place(n syntax.Node) place {
	if sh.fixed != nil {
		return *sh.fixed
	}
	p := n.Pos()
	return place{line: int(p.Line()), column: int(p.Col())}
}

// script walks a whole script. What stands before a syntax error is judged, because bash would run it.
func (sh *shell) script(code string) stream {
	start := place{line: 1, column: 1}
	if sh.fixed != nil {
		start = *sh.fixed
	}
	if len(code) > maxShellCode {
		sh.a.opaque(opaqueSize, "more than 1 MiB of shell code", start)
		code = code[:maxShellCode]
	}
	if tooDeep(code) {
		sh.a.opaque(opaqueSize, "shell code nested too deeply", start)
		return stream{text: holeText}
	}
	var out outputs
	list, err := parseShell(code)
	for _, stmt := range list {
		out.add(sh.stmt(stmt, stream{text: holeText}))
	}
	if err != nil {
		sh.a.opaque(opaqueSyntax, "not valid bash: "+parseMessage(err), sh.errorPlace(err, start))
		out.add(stream{text: holeText})
	}
	if sh.nesting == 0 {
		sh.uncalled()
	}
	return out.stream()
}

// uncalled walks functions that the script only declares: a later command may call them.
func (sh *shell) uncalled() {
	for _, name := range slices.Sorted(maps.Keys(sh.funcs)) {
		if !sh.called[name] {
			sh.called[name] = true
			sh.layer(func() { sh.stmt(sh.funcs[name], stream{text: holeText}) })
		}
	}
}

func (sh *shell) errorPlace(err error, start place) place {
	if sh.fixed != nil {
		return start
	}
	if pe, ok := errors.AsType[syntax.ParseError](err); ok {
		return place{line: int(pe.Pos.Line()), column: int(pe.Pos.Col())}
	}
	if le, ok := errors.AsType[syntax.LangError](err); ok {
		return place{line: int(le.Pos.Line()), column: int(le.Pos.Col())}
	}
	return start
}

// outputs gathers what several commands write one after the other.
type outputs struct {
	text strings.Builder
	from []string
	full bool // more than is worth keeping
}

func (o *outputs) add(s stream) {
	if o.full = o.full || o.text.Len()+len(s.text) > maxOutput; !o.full {
		o.text.WriteString(s.text)
	}
	for _, name := range s.from {
		if len(o.from) < maxAlternatives && !slices.Contains(o.from, name) {
			o.from = append(o.from, name)
		}
	}
}

func (o *outputs) stream() stream {
	if o.full {
		return stream{text: holeText, from: o.from}
	}
	return stream{text: o.text.String(), from: o.from}
}

func (sh *shell) stmts(list []*syntax.Stmt, in stream) stream {
	var out outputs
	for _, s := range list {
		out.add(sh.stmt(s, in))
	}
	return out.stream()
}

// stmt walks one statement with its redirections and gives its output.
func (sh *shell) stmt(s *syntax.Stmt, in stream) stream {
	if s == nil || !sh.a.step(sh.place(s)) {
		return stream{text: holeText}
	}
	target, appends := "", false
	for _, r := range s.Redirs {
		switch r.Op {
		case syntax.Hdoc, syntax.DashHdoc:
			in = stream{text: sh.one(r.Hdoc)}
			sh.a.text(in.text, sh.place(r))
		case syntax.WordHdoc:
			in = stream{text: sh.one(r.Word) + "\n"}
		case syntax.RdrIn, syntax.RdrInOut:
			name := sh.one(r.Word)
			sh.a.add(&fact{kind: kindRead, args: []string{name}, cwd: sh.cwd, place: sh.place(r)})
			in = stream{text: sh.file(name)}
		case syntax.DplIn, syntax.DplOut:
			// A number or a hyphen is a descriptor; anything else is a file.
			if name := sh.one(r.Word); strings.Trim(name, "0123456789-"+holeText) != "" {
				sh.a.add(&fact{kind: kindWrite, args: []string{name}, cwd: sh.cwd, place: sh.place(r)})
			}
		default:
			name := sh.one(r.Word)
			sh.a.add(&fact{kind: kindWrite, args: []string{name}, cwd: sh.cwd, place: sh.place(r)})
			if r.N == nil || r.N.Value == "1" {
				target, appends = name, r.Op == syntax.AppOut || r.Op == syntax.AppAll
			}
		}
	}
	out := sh.command(s.Cmd, in)
	if target == "" {
		return out
	}
	sh.keep(target, out.text, appends)
	return stream{}
}

// keep remembers what the script wrote into a file, because it may run it later.
func (sh *shell) keep(name, text string, appends bool) {
	if !known(name) || len(sh.a.files) > 1000 {
		return
	}
	name = strings.TrimPrefix(name, "./")
	if appends {
		text = sh.a.files[name] + text
	}
	if len(text) > maxShellCode {
		text = holeText
	}
	sh.a.files[name] = text
}

// file gives what the script itself wrote into a file.
func (sh *shell) file(name string) string {
	if text, ok := sh.a.files[strings.TrimPrefix(name, "./")]; ok {
		return text
	}
	return holeText
}

// command walks a command and gives its output.
func (sh *shell) command(cmd syntax.Command, in stream) stream {
	switch c := cmd.(type) {
	case nil:
		return stream{}
	case *syntax.CallExpr:
		return sh.call(c, in)
	case *syntax.BinaryCmd:
		left := sh.stmt(c.X, in)
		if c.Op == syntax.Pipe || c.Op == syntax.PipeAll {
			return sh.stmt(c.Y, left)
		}
		var out outputs
		out.add(left)
		out.add(sh.stmt(c.Y, in))
		return out.stream()
	case *syntax.Block:
		return sh.stmts(c.Stmts, in)
	case *syntax.Subshell:
		cwd := sh.cwd
		sh.vars = &scope{parent: sh.vars, vars: map[string]variable{}}
		out := sh.stmts(c.Stmts, in)
		sh.vars, sh.cwd = sh.vars.parent, cwd
		return out
	case *syntax.IfClause:
		return sh.branch(c, in)
	case *syntax.WhileClause:
		sh.stmts(c.Cond, in)
		sh.layer(func() { sh.stmts(c.Do, in) })
	case *syntax.ForClause:
		sh.loop(c, in)
	case *syntax.CaseClause:
		sh.fields(c.Word)
		for _, item := range c.Items {
			sh.layer(func() { sh.stmts(item.Stmts, in) })
		}
	case *syntax.FuncDecl:
		if c.Name != nil {
			sh.funcs[c.Name.Value] = c.Body
			if startsItself(c.Name.Value, c.Body) {
				sh.a.add(&fact{kind: kindShape, name: shapeForkBomb, place: sh.place(c)})
			}
		}
		return stream{}
	case *syntax.DeclClause:
		for _, as := range c.Args {
			if as.Name != nil {
				sh.assign(as)
			} else if as.Value != nil {
				sh.fields(as.Value)
			}
		}
		return stream{}
	case *syntax.TimeClause:
		return sh.stmt(c.Stmt, in)
	case *syntax.CoprocClause:
		return sh.stmt(c.Stmt, in)
	default: // tests and arithmetic: only what is substituted into them runs
		sh.inside(cmd)
		return stream{}
	}
	return stream{text: holeText}
}

// startsItself reports whether a function runs itself in the background or in a pipe, where nothing holds it back.
func startsItself(name string, body *syntax.Stmt) bool {
	calls := func(n syntax.Node) bool {
		found := false
		syntax.Walk(n, func(n syntax.Node) bool {
			if c, ok := n.(*syntax.CallExpr); ok && len(c.Args) > 0 && c.Args[0].Lit() == name {
				found = true
			}
			return !found
		})
		return found
	}
	found := false
	syntax.Walk(body, func(n syntax.Node) bool {
		switch x := n.(type) {
		case *syntax.Stmt:
			found = found || (x.Background && calls(x))
		case *syntax.BinaryCmd:
			found = found || ((x.Op == syntax.Pipe || x.Op == syntax.PipeAll) && calls(x.X) && calls(x.Y))
		}
		return !found
	})
	return found
}

// branch walks all arms of an if.
func (sh *shell) branch(c *syntax.IfClause, in stream) stream {
	for ; c != nil; c = c.Else {
		sh.stmts(c.Cond, in)
		sh.layer(func() { sh.stmts(c.Then, in) })
	}
	return stream{text: holeText}
}

// loop walks a for loop, once per item where the items are known.
func (sh *shell) loop(c *syntax.ForClause, in stream) {
	items := []string{holeText}
	iter, ok := c.Loop.(*syntax.WordIter)
	switch {
	case !ok:
		sh.inside(c.Loop)
	case iter.InPos.IsValid():
		items = items[:0]
		for _, argv := range sh.argvs(iter.Items) {
			items = append(items, argv...)
		}
	case sh.args != nil:
		items = sh.args
	}
	if len(items) > maxIterations {
		items = append(items[:maxIterations:maxIterations], holeText)
	}
	for _, item := range items {
		sh.layer(func() {
			if ok {
				sh.set(iter.Name.Value, variable{values: []string{item}})
			}
			sh.stmts(c.Do, in)
		})
	}
}

// layer runs f on a layer of variables of its own; afterwards each variable may have its old or its new value.
func (sh *shell) layer(f func()) {
	cwd := sh.cwd
	sh.vars = &scope{parent: sh.vars, vars: map[string]variable{}}
	f()
	top := sh.vars
	sh.vars = top.parent
	for name, v := range top.vars {
		old, ok := sh.vars.get(name)
		if !ok {
			sh.vars.vars[name] = v
			continue
		}
		sh.vars.vars[name] = variable{values: union(old.values, v.values), array: v.array}
	}
	if sh.cwd != cwd {
		sh.cwd = ""
	}
}

// union is all values of both, or a hole when they are too many.
func union(a, b []string) []string {
	out := append([]string(nil), a...)
	for _, v := range b {
		found := false
		for _, o := range out {
			found = found || o == v
		}
		if !found {
			out = append(out, v)
		}
	}
	if len(out) > maxAlternatives {
		return []string{holeText}
	}
	return out
}

func (sh *shell) set(name string, v variable) { sh.vars.vars[name] = v }

// assign sets a variable from an assignment in the code.
func (sh *shell) assign(as *syntax.Assign) {
	name := as.Name.Value
	if as.Naked {
		return
	}
	if as.Array != nil {
		var elems []string
		for _, e := range as.Array.Elems {
			if e.Value == nil {
				continue
			}
			for _, argv := range sh.argvs([]*syntax.Word{e.Value}) {
				elems = append(elems, argv...)
			}
		}
		if old, ok := sh.vars.get(name); ok && as.Append {
			elems = append(old.array[:len(old.array):len(old.array)], elems...)
		}
		v := variable{array: elems, values: []string{""}}
		if len(elems) > 0 {
			v.values = elems[:1]
		}
		sh.set(name, v)
		return
	}
	values := sh.values(as.Value)
	if as.Index != nil {
		values = []string{holeText}
	}
	if old, ok := sh.vars.get(name); ok && as.Append {
		values = cross(old.values, values)
	} else if as.Append {
		values = cross([]string{holeText}, values)
	}
	for _, v := range values {
		sh.a.text(name+"="+v, sh.place(as))
	}
	sh.set(name, variable{values: values})
}

// inside walks the substitutions within a node that is not itself a command.
func (sh *shell) inside(n syntax.Node) {
	syntax.Walk(n, func(n syntax.Node) bool {
		switch x := n.(type) {
		case *syntax.CmdSubst:
			sh.stmts(x.Stmts, stream{text: holeText})
			return false
		case *syntax.ProcSubst:
			sh.stmts(x.Stmts, stream{text: holeText})
			return false
		}
		return true
	})
}

// call walks a simple command.
func (sh *shell) call(c *syntax.CallExpr, in stream) stream {
	if len(c.Args) == 0 {
		for _, as := range c.Assigns {
			sh.assign(as)
		}
		return stream{}
	}
	if len(c.Assigns) > 0 { // they hold for this command only
		outer := sh.vars
		sh.vars = &scope{parent: outer, vars: map[string]variable{}}
		defer func() { sh.vars = outer }()
	}
	argvs := sh.argvs(c.Args)
	for _, as := range c.Assigns {
		sh.assign(as)
	}
	var out stream
	for i, argv := range argvs {
		for _, s := range argv {
			sh.a.text(s, sh.place(c))
		}
		o := sh.run(argv, in, sh.place(c))
		if i > 0 && o.text != out.text {
			o.text = holeText
		}
		out = o
	}
	return out
}
