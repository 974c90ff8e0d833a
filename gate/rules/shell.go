package rules

import (
	"maps"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

const (
	maxAlternatives = 16       // values of a variable, or argument lists of a command, that are followed
	maxIterations   = 32       // rounds of a loop over a known list that are followed
	maxOutput       = 64 << 10 // bytes of a command's output that are followed
	maxCalls        = 12       // functions calling functions that are followed
	maxFiles        = 1000     // files written by the code that are followed
)

// stream is what a command reads or writes: text with holes, and the commands that wrote it.
type stream struct {
	text string
	from []string
}

// unknown is an input or output with unknown content.
var unknown = stream{text: holeText}

// shell walks a script in the order in which bash would run it, with the values that static analysis can determine.
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
	fixed   *place   // the position of nested code in the outer code; nil: this is the outer code
}

func newShell(a *analysis, fixed *place, nesting int) *shell {
	return &shell{
		a:       a,
		fixed:   fixed,
		nesting: nesting,
		vars:    &scope{vars: map[string]variable{"HOME": {values: []string{"~"}}}},
		funcs:   map[string]*syntax.Stmt{},
		called:  map[string]bool{},
		aliases: map[string]string{},
	}
}

// place returns the position to report for a node.
func (sh *shell) place(n syntax.Node) place { return sh.position(n.Pos()) }

func (sh *shell) position(p syntax.Pos) place {
	switch {
	case sh.fixed != nil:
		return *sh.fixed
	case !p.IsValid():
		return place{line: 1, column: 1}
	}
	return place{line: int(p.Line()), column: int(p.Col())}
}

// script walks a whole script. Statements before a syntax error count, because bash would run them.
func (sh *shell) script(code string) stream {
	start := sh.position(syntax.Pos{})
	if len(code) > maxShellCode {
		sh.a.opaque(opaqueSize, "more than 1 MiB of shell code", start)
		code = code[:maxShellCode]
	}
	if tooDeep(code) {
		sh.a.opaque(opaqueSize, "shell code nested too deeply", start)
		return unknown
	}
	list, err := parseShell(code)
	var out outputs
	out.add(sh.stmts(list, unknown))
	if err != nil {
		message, pos := parseError(err)
		sh.a.opaque(opaqueSyntax, "not valid bash: "+message, sh.position(pos))
		out.add(unknown)
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
			sh.branch(func() { sh.stmt(sh.funcs[name], unknown) })
		}
	}
}

// outputs joins the output of several commands.
type outputs struct {
	text strings.Builder
	from []string
	full bool // more than maxOutput
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

// stmt walks one statement with its redirections and returns its output.
func (sh *shell) stmt(s *syntax.Stmt, in stream) stream {
	if s == nil || !sh.a.step(sh.place(s)) {
		return unknown
	}
	target, appends := "", false
	for _, r := range s.Redirs {
		file := func(k kind, name string) {
			sh.a.add(&fact{kind: k, args: []string{name}, cwd: sh.cwd, place: sh.place(r)})
		}
		switch r.Op {
		case syntax.Hdoc, syntax.DashHdoc:
			in = stream{text: sh.one(r.Hdoc)}
			sh.a.text(in.text, sh.place(r))
		case syntax.WordHdoc:
			in = stream{text: sh.one(r.Word) + "\n"}
		case syntax.RdrIn, syntax.RdrInOut:
			name := sh.one(r.Word)
			file(kindRead, name)
			in = unknown
			if text, ok := sh.file(name); ok {
				in = stream{text: text, from: []string{"cat"}}
			}
		case syntax.DplIn, syntax.DplOut:
			// A number or a hyphen is a descriptor; anything else is a file.
			if name := sh.one(r.Word); strings.Trim(name, "0123456789-"+holeText) != "" {
				file(kindWrite, name)
			}
		default:
			name := sh.one(r.Word)
			file(kindWrite, name)
			if r.N == nil || r.N.Value == "1" {
				target, appends = name, r.Op == syntax.AppOut || r.Op == syntax.AppAll
			}
		}
	}
	out := sh.command(s.Cmd, in)
	if target == "" {
		return out
	}
	sh.writeFile(target, out.text, appends)
	return stream{}
}

// writeFile remembers what the script writes into a file, because it may run the file later.
func (sh *shell) writeFile(name, text string, appends bool) {
	if !known(name) || len(sh.a.files) > maxFiles {
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

// file returns what the script itself wrote into a file.
func (sh *shell) file(name string) (text string, written bool) {
	text, written = sh.a.files[strings.TrimPrefix(name, "./")]
	return text, written
}

// command walks a command and returns its output.
func (sh *shell) command(cmd syntax.Command, in stream) stream {
	switch c := cmd.(type) {
	case nil:
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
		for ; c != nil; c = c.Else {
			sh.stmts(c.Cond, in)
			sh.branch(func() { sh.stmts(c.Then, in) })
		}
		return unknown
	case *syntax.WhileClause:
		sh.stmts(c.Cond, in)
		sh.branch(func() { sh.stmts(c.Do, in) })
		return unknown
	case *syntax.ForClause:
		sh.loop(c, in)
		return unknown
	case *syntax.CaseClause:
		sh.fields(c.Word)
		for _, item := range c.Items {
			sh.branch(func() { sh.stmts(item.Stmts, in) })
		}
		return unknown
	case *syntax.FuncDecl:
		if c.Name != nil {
			sh.funcs[c.Name.Value] = c.Body
			if startsItself(c.Name.Value, c.Body) {
				sh.a.add(&fact{kind: kindShape, name: shapeForkBomb, place: sh.place(c)})
			}
		}
	case *syntax.DeclClause:
		for _, as := range c.Args {
			if as.Name != nil {
				sh.assign(as)
			} else if as.Value != nil {
				sh.fields(as.Value)
			}
		}
	case *syntax.TimeClause:
		return sh.stmt(c.Stmt, in)
	case *syntax.CoprocClause:
		return sh.stmt(c.Stmt, in)
	default: // tests and arithmetic: only substitutions in them run
		sh.substitutions(cmd)
	}
	return stream{}
}

// startsItself reports whether a function runs itself in the background or in a pipe, so that nothing limits it.
func startsItself(name string, body *syntax.Stmt) bool {
	calls := func(n syntax.Node) bool {
		found := false
		syntax.Walk(n, func(n syntax.Node) bool {
			c, ok := n.(*syntax.CallExpr)
			found = found || ok && len(c.Args) > 0 && c.Args[0].Lit() == name
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

// loop walks a for loop, once per item where the items are known.
func (sh *shell) loop(c *syntax.ForClause, in stream) {
	items := []string{holeText}
	iter, ok := c.Loop.(*syntax.WordIter)
	switch {
	case !ok:
		sh.substitutions(c.Loop)
	case iter.InPos.IsValid():
		items = slices.Concat(sh.argvs(iter.Items)...)
	case sh.args != nil:
		items = sh.args
	}
	for _, item := range firstItems(items) {
		sh.branch(func() {
			if ok {
				sh.set(iter.Name.Value, item)
			}
			sh.stmts(c.Do, in)
		})
	}
}

// firstItems returns the items that are followed, with a hole in place of the others.
func firstItems(items []string) []string {
	if len(items) > maxIterations {
		return append(items[:maxIterations:maxIterations], holeText)
	}
	return items
}

// substitutions walks the command substitutions within a node that is not itself a command.
func (sh *shell) substitutions(n syntax.Node) {
	syntax.Walk(n, func(n syntax.Node) bool {
		switch x := n.(type) {
		case *syntax.CmdSubst:
			sh.stmts(x.Stmts, unknown)
			return false
		case *syntax.ProcSubst:
			sh.stmts(x.Stmts, unknown)
			return false
		}
		return true
	})
}

// call walks a simple command.
func (sh *shell) call(c *syntax.CallExpr, in stream) stream {
	if len(c.Args) > 0 && len(c.Assigns) > 0 { // the assignments hold for this command only
		outer := sh.vars
		sh.vars = &scope{parent: outer, vars: map[string]variable{}}
		defer func() { sh.vars = outer }()
	}
	argvs := sh.argvs(c.Args)
	for _, as := range c.Assigns {
		sh.assign(as)
	}
	if len(c.Args) == 0 {
		return stream{}
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
