package rules

import (
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// run walks one command whose arguments are expanded, and returns its output.
func (sh *shell) run(argv []string, in stream, p place) stream {
	if len(argv) == 0 || !sh.a.step(p) {
		return unknown
	}
	if text, ok := sh.aliases[argv[0]]; ok && sh.nesting < maxNesting {
		return sh.nested("alias", text+" "+quoteAll(argv[1:]), p)
	}
	if !known(path.Base(argv[0])) {
		sh.a.opaque(opaqueCommand, "the program that "+show(argv[0])+" runs cannot be determined from the code", p)
		return stream{text: holeText, from: []string{holeText}}
	}
	if body, ok := sh.funcs[argv[0]]; ok {
		return sh.function(argv[0], body, argv[1:], in)
	}
	name, args := programName(argv[0]), argv[1:]
	f := &fact{kind: kindCommand, name: name, args: args, from: in.from, cwd: sh.cwd, place: p}
	f.reads, f.writes = operandFiles(name, args)
	kind, rest := codeOf(name, args)
	if kind != codeFromInput && kind != notInterpreter {
		f.from = nil // its input is data, not code
	}
	sh.a.add(f)
	if o, ok := sh.builtin(name, args, p); ok {
		return o
	}
	if o, ok := sh.unwrap(name, args, in, p); ok {
		return o
	}
	if kind != notInterpreter {
		return sh.interpreter(name, kind, rest, in, p)
	}
	sh.effects(name, args, in, p)
	if text, ok := sh.file(argv[0]); ok && strings.Contains(argv[0], "/") {
		return sh.nested(argv[0], text, p)
	}
	return stream{text: sh.output(name, args, in), from: append(in.from[:len(in.from):len(in.from)], name)}
}

// programName returns the name of a program without its directory.
func programName(file string) string {
	if file == "" {
		return ""
	}
	return path.Base(file)
}

// output returns what a command writes. Only commands that pass on text or paths are simulated. The output of all
// others is a hole.
func (sh *shell) output(name string, args []string, in stream) string {
	switch name {
	case "echo":
		return echo(args)
	case "printf":
		if len(args) == 1 && !strings.Contains(args[0], "%") {
			return unescape(args[0])
		}
	case "cat":
		var b strings.Builder
		files := 0
		for _, a := range args {
			switch {
			case a == "-":
				b.WriteString(in.text)
				files++
			case !strings.HasPrefix(a, "-"):
				text, ok := sh.file(a)
				if !ok {
					text = holeText
				}
				b.WriteString(text)
				files++
			}
		}
		if files == 0 {
			return in.text
		}
		return b.String()
	case "tee":
		for _, a := range args {
			if !strings.HasPrefix(a, "-") {
				sh.writeFile(a, in.text, slices.Contains(args, "-a") || slices.Contains(args, "--append"))
			}
		}
		return in.text
	case "basename", "dirname":
		if len(args) == 1 && known(args[0]) {
			if name == "basename" {
				return path.Base(args[0]) + "\n"
			}
			return path.Dir(args[0]) + "\n"
		}
	case "mktemp":
		return "/tmp/" + holeText
	case "pwd":
		if sh.cwd != "" {
			return sh.cwd + "\n"
		}
	case "true", ":", "cd", "export", "set", "shopt", "alias", "unset", "mkdir", "rm", "touch", "cp", "mv", "chmod",
		"sleep", "trap":
		return ""
	}
	return holeText
}

func echo(args []string) string {
	end, escapes := "\n", false
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' && strings.Trim(args[0][1:], "neE") == "" {
		if strings.Contains(args[0], "n") {
			end = ""
		}
		escapes = escapes || strings.Contains(args[0], "e")
		args = args[1:]
	}
	text := strings.Join(args, " ")
	if escapes {
		text = unescape(text)
	}
	return text + end
}

// function walks a function of the script with its arguments.
func (sh *shell) function(name string, body *syntax.Stmt, args []string, in stream) stream {
	sh.called[name] = true
	if sh.calls >= maxCalls {
		return unknown
	}
	sh.calls++
	outer := sh.args
	sh.args = append([]string{}, args...)
	out := sh.stmt(body, in)
	sh.args = outer
	sh.calls--
	return out
}

// nested walks shell code that runs in this shell. what names the command that runs the code.
func (sh *shell) nested(what, code string, p place) stream {
	if sh.nesting >= maxNesting {
		sh.a.opaque(opaqueSize, "code is nested too deeply (eval in bash -c in eval ...) to be analyzed", p)
		return unknown
	}
	if unreadable(code) {
		sh.a.opaqueCode(what, p)
		return unknown
	}
	inner := *sh
	inner.nesting++
	if inner.fixed == nil {
		inner.fixed = &p
	}
	out := inner.script(code)
	sh.cwd = inner.cwd
	return out
}

// child walks code in a new shell, whose variables do not change this shell.
func (sh *shell) child(what, code string, args []string, p place) stream {
	inner := *sh
	inner.vars = &scope{parent: sh.vars, vars: map[string]variable{}}
	inner.args = append([]string{}, args...)
	inner.aliases = map[string]string{}
	return inner.nested(what, code, p)
}

// builtin applies the commands that change the shell itself. done reports that nothing more is to be done for the
// command.
func (sh *shell) builtin(name string, args []string, p place) (out stream, done bool) {
	switch name {
	case "cd", "pushd":
		sh.chdir(args)
	case "eval":
		return sh.nested("eval", strings.Join(args, " "), p), true
	case "source", ".":
		if len(args) == 0 {
			break
		}
		if text, ok := sh.file(args[0]); ok {
			return sh.nested(name, text, p), true
		}
		if strings.HasPrefix(args[0], "/dev/fd/") || args[0] == "/dev/stdin" {
			sh.a.opaqueCode(name, p)
		}
	case "alias":
		for _, a := range args {
			if k, v, ok := strings.Cut(a, "="); ok {
				sh.aliases[k] = v
			}
		}
	case "unalias":
		for _, a := range args {
			delete(sh.aliases, a)
		}
	case "trap":
		if len(args) > 1 && args[0] != "" && !strings.HasPrefix(args[0], "-") {
			sh.child("trap", args[0], nil, p)
		}
	case "set":
		if i := slices.Index(args, "--"); i >= 0 {
			sh.args = append([]string{}, args[i+1:]...)
		}
	case "shift":
		if len(sh.args) > 0 {
			sh.args = sh.args[1:]
		}
	case "printf":
		if len(args) > 1 && args[0] == "-v" {
			sh.set(args[1], holeText)
		}
	case "read", "mapfile", "readarray", "getopts":
		for _, a := range args {
			if syntax.ValidName(a) {
				sh.set(a, holeText)
			}
		}
	case "unset":
		for _, a := range args {
			sh.set(a, "")
		}
	case "export", "declare", "local", "readonly", "typeset":
		for _, a := range args {
			if k, v, ok := strings.Cut(a, "="); ok && syntax.ValidName(k) {
				sh.set(k, v)
			}
		}
	}
	return stream{}, false
}

// chdir applies cd and pushd.
func (sh *shell) chdir(args []string) {
	dir := "~"
	for _, a := range args {
		if !strings.HasPrefix(a, "-") {
			dir = a
		} else if a == "-" {
			dir = holeText
		}
	}
	switch {
	case !known(dir):
		sh.cwd = ""
	case strings.HasPrefix(dir, "/") || strings.HasPrefix(dir, "~"):
		sh.cwd = path.Clean(dir)
	case sh.cwd != "":
		sh.cwd = path.Join(sh.cwd, dir)
	}
}

// quoteAll returns arguments as shell code.
func quoteAll(args []string) string {
	var b strings.Builder
	for _, a := range args {
		q, err := syntax.Quote(a, syntax.LangBash)
		if err != nil {
			q = holeText
		}
		b.WriteString(q)
		b.WriteByte(' ')
	}
	return b.String()
}
