package gate

import (
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// wrapper says how a program that runs another is unwrapped.
type wrapper struct {
	valued   string // its short flags that take a value
	long     []string
	operands int  // of its own, before the program
	assigns  bool // NAME=value may stand before the program
}

var wrappers = map[string]wrapper{
	"sudo": {valued: "ugpChDrtUT", long: []string{"--user", "--group", "--chdir", "--host"}, assigns: true}, "doas": {valued: "uC"},
	"env": {valued: "uSC", long: []string{"--unset", "--chdir", "--split-string"}, assigns: true}, "nohup": {}, "setsid": {}, "time": {valued: "fo"},
	"nice": {valued: "n", long: []string{"--adjustment"}}, "ionice": {valued: "cnp"}, "chrt": {operands: 1}, "taskset": {operands: 1},
	"timeout": {valued: "ks", long: []string{"--signal", "--kill-after"}, operands: 1}, "stdbuf": {valued: "ioe"},
	"exec": {valued: "a"}, "command": {}, "builtin": {}, "chroot": {operands: 1}, "busybox": {}, "toybox": {}, "unshare": {}, "strace": {valued: "eopsEu"},
	"watch": {valued: "n", long: []string{"--interval"}}, "parallel": {valued: "jI", long: []string{"--jobs"}}, "flock": {valued: "wE", operands: 1}, "xvfb-run": {valued: "nse"},
}

var shells = []string{"sh", "bash", "dash", "zsh", "ksh", "ash", "rbash"}

// run judges one command whose arguments are worked out, and gives its output.
func (sh *shell) run(argv []string, in stream, p place) stream {
	if len(argv) == 0 || !sh.a.step(p) {
		return stream{text: holeText}
	}
	if text, ok := sh.aliases[argv[0]]; ok && sh.nesting < maxNesting {
		return sh.nested("alias", text+" "+quoteAll(argv[1:]), in, p)
	}
	name := base(argv[0])
	if !known(name) {
		sh.a.opaque(opaqueCommand, "which program "+show(argv[0])+" is cannot be told from the code", p)
		return stream{text: holeText, from: []string{holeText}}
	}
	if body, ok := sh.funcs[argv[0]]; ok {
		return sh.function(argv[0], body, argv[1:], in)
	}
	f := &fact{kind: kindCommand, name: name, args: argv[1:], from: in.from, cwd: sh.cwd, place: p}
	if interprets(name) && !readsCode(name, argv[1:]) {
		f.from = nil // its input is data
	}
	sh.a.add(f)
	out := stream{text: sh.output(name, argv[1:], in), from: append(in.from[:len(in.from):len(in.from)], name)}
	if o, ok := sh.builtin(name, argv[1:], in, p); ok {
		return o
	}
	if o, ok := sh.unwrap(name, argv[1:], in, p); ok {
		return o
	}
	if slices.Contains(shells, name) {
		return sh.interpreter(name, argv[1:], in, p)
	}
	if name == "pypy3" || isPython(name) {
		sh.pythonProgram(name, argv[1:], in, p)
		return stream{text: holeText, from: out.from}
	}
	if text, ok := sh.a.files[strings.TrimPrefix(argv[0], "./")]; ok && strings.Contains(argv[0], "/") {
		return sh.nested(argv[0], text, in, p)
	}
	return out
}

// interprets reports whether a program runs code that it is given.
func interprets(name string) bool {
	return slices.Contains(shells, name) || isPython(name) || slices.Contains([]string{"perl", "ruby", "node", "php"}, name)
}

// readsCode reports whether an interpreter with these arguments takes its code from its input.
func readsCode(name string, args []string) bool {
	given := "e" // the flags by which it gets its code otherwise
	switch {
	case slices.Contains(shells, name):
		given = "c"
	case isPython(name):
		given = "cm"
	}
	for i, a := range args {
		switch {
		case a == "-" || a == "-s" || a == "/dev/stdin":
			return true
		case !strings.HasPrefix(a, "-") && !strings.HasPrefix(a, "+"):
			return i > 0 && (args[i-1] == "-o" || args[i-1] == "-O")
		case !strings.HasPrefix(a, "--") && strings.ContainsAny(a, given):
			return false
		}
	}
	return true
}

func isPython(name string) bool {
	rest, ok := strings.CutPrefix(name, "python")
	return ok && strings.Trim(rest, "0123456789.") == ""
}

// function walks a function of the script with its arguments.
func (sh *shell) function(name string, body *syntax.Stmt, args []string, in stream) stream {
	sh.called[name] = true
	if sh.calls >= maxCalls {
		return stream{text: holeText}
	}
	sh.calls++
	outer := sh.args
	sh.args = append([]string{}, args...)
	out := sh.stmt(body, in)
	sh.args = outer
	sh.calls--
	return out
}

// nested judges text as shell code that runs in this shell.
func (sh *shell) nested(what, code string, in stream, p place) stream {
	if sh.nesting >= maxNesting {
		sh.a.opaque(opaqueSize, "code in code in code, too deep to follow", p)
		return stream{text: holeText}
	}
	if strings.Trim(code, holeText+" \t\n\"'") == "" && !known(code) {
		sh.a.opaque(opaqueCode, what+" runs code that cannot be told from here", p)
		return stream{text: holeText}
	}
	inner := *sh
	inner.nesting++
	if inner.fixed == nil {
		inner.fixed = &p
	}
	if in.text == "" {
		in.text = holeText
	}
	out := inner.script(code)
	sh.cwd = inner.cwd
	return out
}

// interpreter judges what a shell is given to run.
func (sh *shell) interpreter(name string, args []string, in stream, p place) stream {
	hole := stream{text: holeText}
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case strings.HasPrefix(a, "-") && !strings.HasPrefix(a, "--") && strings.Contains(a, "c"):
			if i+1 >= len(args) {
				return hole
			}
			return sh.child(name+" -c", args[i+1], args[min(i+3, len(args)):], in, p)
		case a == "-o" || a == "-O" || a == "--rcfile" || a == "--init-file":
			i++
		case a == "-s" || a == "-" || a == "/dev/stdin":
			return sh.fromInput(name, in, p)
		case strings.HasPrefix(a, "-") || strings.HasPrefix(a, "+"):
		default:
			if text := sh.file(a); text != holeText {
				return sh.child(name+" "+a, text, args[i+1:], in, p)
			}
			return hole
		}
	}
	return sh.fromInput(name, in, p)
}

// fromInput judges a shell that reads its code from its input.
func (sh *shell) fromInput(name string, in stream, p place) stream {
	if in.text == holeText && len(in.from) == 0 {
		return stream{text: holeText} // an interactive shell
	}
	return sh.child(name, in.text, nil, in, p)
}

// child judges code in a shell of its own: what it sets stays there.
func (sh *shell) child(what, code string, args []string, in stream, p place) stream {
	inner := *sh
	inner.vars = &scope{parent: sh.vars, vars: map[string]variable{}}
	inner.args = append([]string{}, args...)
	inner.aliases = map[string]string{}
	return inner.nested(what, code, in, p)
}

// pythonProgram judges what a Python is given to run.
func (sh *shell) pythonProgram(name string, args []string, in stream, p place) {
	judge := func(what, code string) {
		if strings.Trim(code, holeText+" \t\n") == "" && !known(code) {
			sh.a.opaque(opaqueCode, what+" runs code that cannot be told from here", p)
			return
		}
		at := p
		if sh.fixed != nil {
			at = *sh.fixed
		}
		sh.a.python(code, &at, sh.nesting+1)
	}
	for i, a := range args {
		switch {
		case strings.HasPrefix(a, "-") && !strings.HasPrefix(a, "--") && strings.HasSuffix(a, "c"):
			if i+1 < len(args) {
				judge(name+" -c", args[i+1])
			}
			return
		case strings.HasPrefix(a, "-") && strings.HasSuffix(a, "m"):
			return
		case a == "-":
			judge(name, in.text)
			return
		case strings.HasPrefix(a, "-"):
		default:
			if text := sh.file(a); text != holeText {
				judge(name+" "+a, text)
			}
			return
		}
	}
	if in.text != holeText || len(in.from) > 0 {
		judge(name, in.text)
	}
}

// unwrap judges the program that another one runs.
func (sh *shell) unwrap(name string, args []string, in stream, p place) (stream, bool) {
	switch name {
	case "xargs":
		return sh.xargs(args, in, p), true
	case "find", "fd":
		sh.find(args, in, p)
		return stream{}, false
	case "su", "runuser":
		for i, a := range args {
			if (a == "-c" || a == "--command") && i+1 < len(args) {
				return sh.child(name+" -c", args[i+1], nil, in, p), true
			}
		}
		return stream{}, false
	}
	w, ok := wrappers[name]
	if !ok {
		return stream{}, false
	}
	left := w.operands
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "--":
			continue
		case name == "env" && (a == "-S" || a == "--split-string") && i+1 < len(args):
			return sh.nested("env -S", args[i+1]+" "+quoteAll(args[i+2:]), in, p), true
		case strings.HasPrefix(a, "--"):
			if slices.Contains(w.long, a) {
				i++
			}
		case strings.HasPrefix(a, "-") && len(a) > 1:
			if len(a) == 2 && strings.Contains(w.valued, a[1:]) {
				i++
			}
		case w.assigns && strings.Contains(a, "=") && syntax.ValidName(a[:strings.Index(a, "=")]):
			sh.set(a[:strings.Index(a, "=")], variable{values: []string{a[strings.Index(a, "=")+1:]}})
		case left > 0:
			left--
		case name == "watch" || (name == "parallel" && strings.Contains(a, " ")):
			return sh.nested(name, strings.Join(args[i:], " "), in, p), true
		default:
			return sh.run(args[i:], in, p), true
		}
	}
	return stream{}, false
}

// xargs judges the command that gets its arguments from the input.
func (sh *shell) xargs(args []string, in stream, p place) stream {
	replace := ""
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		a := args[0]
		args = args[1:]
		switch {
		case (a == "-I" || a == "-i" || a == "--replace") && len(args) > 0:
			replace, args = args[0], args[1:]
		case strings.HasPrefix(a, "-I"):
			replace = a[2:]
		case len(a) == 2 && strings.Contains("nPLsdEa", a[1:]) && len(args) > 0:
			args = args[1:]
		}
	}
	if len(args) == 0 {
		args = []string{"echo"}
	}
	items := strings.Fields(strings.ReplaceAll(in.text, "\x00", " "))
	if !known(in.text) {
		items = []string{strings.TrimSpace(in.text)}
		if strings.ContainsAny(items[0], " \t\n") {
			items = strings.Fields(items[0])
		}
	}
	if len(items) > maxIterations {
		items = append(items[:maxIterations:maxIterations], holeText)
	}
	in = stream{text: holeText, from: in.from}
	if replace == "" {
		return sh.run(append(args[:len(args):len(args)], items...), in, p)
	}
	for _, item := range items {
		argv := make([]string, len(args))
		for i, a := range args {
			argv[i] = strings.ReplaceAll(a, replace, item)
		}
		sh.run(argv, in, p)
	}
	return in
}

// find judges what find does to what it finds.
func (sh *shell) find(args []string, in stream, p place) {
	roots := args[:0:0]
	for _, a := range args {
		if strings.HasPrefix(a, "-") || a == "(" || a == "!" {
			break
		}
		roots = append(roots, a)
	}
	if len(roots) == 0 {
		roots = []string{"."}
	}
	// A search that leaves things out does not reach the root itself.
	narrow := slices.ContainsFunc(args, func(a string) bool {
		return slices.Contains([]string{
			"-name", "-iname", "-path", "-ipath", "-regex", "-mtime", "-mmin", "-atime", "-ctime", "-newer", "-size", "-user", "-empty", "-perm",
			"-inum", "-links", "-nouser", "-samefile", "-wholename",
		}, a)
	})
	for i, a := range args {
		switch a {
		case "-delete":
			if !narrow {
				sh.run(append([]string{"rm", "-r"}, roots...), in, p)
			}
		case "-exec", "-execdir", "-ok", "-okdir":
			var argv []string
			for _, b := range args[i+1:] {
				if b == ";" || b == "+" {
					break
				}
				argv = append(argv, b)
			}
			for _, root := range roots {
				item := root
				if narrow {
					item = path.Join(root, holeText) + holeText
					if root == "/" {
						item = "/" + holeText + "/" + holeText
					}
				}
				sh.run(replaced(argv, "{}", item), in, p)
			}
		}
	}
}

func replaced(argv []string, from, to string) []string {
	out := make([]string, len(argv))
	for i, a := range argv {
		out[i] = strings.ReplaceAll(a, from, to)
	}
	return out
}

// builtin follows the commands that change the shell itself.
func (sh *shell) builtin(name string, args []string, in stream, p place) (stream, bool) {
	switch name {
	case "cd", "pushd":
		sh.chdir(args)
	case "eval":
		return sh.nested("eval", strings.Join(args, " "), in, p), true
	case "source", ".":
		if len(args) > 0 {
			if text := sh.file(args[0]); text != holeText {
				return sh.nested(name, text, in, p), true
			}
			if strings.HasPrefix(args[0], "/dev/fd/") || args[0] == "/dev/stdin" {
				sh.a.opaque(opaqueCode, name+" runs code that cannot be told from here", p)
			}
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
		if len(args) > 1 && args[0] != "-" && args[0] != "" && !strings.HasPrefix(args[0], "-") {
			sh.child("trap", args[0], nil, in, p)
		}
	case "set":
		if i := slices.Index(args, "--"); i >= 0 {
			sh.args = append([]string{}, args[i+1:]...)
		}
	case "shift":
		if len(sh.args) > 0 {
			sh.args = sh.args[1:]
		}
	case "read", "mapfile", "readarray", "getopts":
		for _, a := range args {
			if syntax.ValidName(a) {
				sh.set(a, variable{values: []string{readLine(name, in)}})
			}
		}
	case "unset":
		for _, a := range args {
			sh.set(a, variable{values: []string{""}})
		}
	case "printf":
		if len(args) > 2 && args[0] == "-v" {
			sh.set(args[1], variable{values: []string{printf(args[2:])}})
		}
	case "export", "declare", "local", "readonly", "typeset":
		for _, a := range args {
			if k, v, ok := strings.Cut(a, "="); ok && syntax.ValidName(k) {
				sh.set(k, variable{values: []string{v}})
			}
		}
	}
	return stream{}, false
}

// readLine is what read takes from a known input of one line.
func readLine(name string, in stream) string {
	text := strings.TrimSuffix(in.text, "\n")
	if name != "read" || strings.ContainsAny(text, "\n") {
		return holeText
	}
	return text
}

// chdir follows cd.
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

// quoteAll writes arguments as shell code.
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
