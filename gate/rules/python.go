package rules

import (
	"encoding/json"
	"slices"
	"strings"
)

// pythonAnswer is what python/facts.py reports about a piece of code.
type pythonAnswer struct {
	Error   string       `json:"error"` // syntax or size
	Message string       `json:"message"`
	Line    int          `json:"line"`
	Column  int          `json:"column"`
	Facts   []pythonFact `json:"facts"`
}

type pythonFact struct {
	Kind     string              `json:"kind"`
	Line     int                 `json:"line"`
	Column   int                 `json:"column"`
	Name     string              `json:"name"`
	Args     []argument          `json:"args"`
	Keywords map[string]argument `json:"keywords"`
	Doubt    bool                `json:"doubt"` // static analysis cannot determine whether the call is harmful
}

// argument is a text or a list of texts.
type argument struct {
	text   string // of a list: its elements, joined
	list   []string
	isList bool
}

// UnmarshalJSON implements json.Unmarshaler.
func (a *argument) UnmarshalJSON(data []byte) error {
	if a.isList = data[0] == '['; !a.isList {
		return json.Unmarshal(data, &a.text)
	}
	err := json.Unmarshal(data, &a.list)
	a.text = strings.Join(a.list, " ")
	return err
}

// python collects the facts of Python code. fixed is the position of nested code in the outer code.
func (a *analysis) python(code string, fixed *place, nesting int) {
	where := func(line, column int) place {
		if fixed != nil {
			return *fixed
		}
		return place{line: max(line, 1), column: column}
	}
	scan := func(name, message string, at place) {
		a.opaque(name, message, at)
		a.scan(code[:min(len(code), maxPythonCode)], fixed)
	}
	start := where(1, 1)
	switch {
	case nesting > maxNesting:
		a.opaque(opaqueSize, "code is nested too deeply (eval in bash -c in eval ...) to be analyzed", start)
		return
	case len(code) > maxPythonCode:
		scan(opaqueSize, "more than 4 MiB of Python", start)
		return
	case a.parser == nil:
		scan(opaqueSyntax, "this host has no python3 to parse the code, so it was only scanned", start)
		return
	}
	answer, err := a.parser.parse(a.ctx, code)
	if err != nil {
		scan(opaqueSize, "Python's parser failed on the code, so it was only scanned", start)
		return
	}
	switch answer.Error {
	case "syntax":
		scan(opaqueSyntax, "not valid Python: "+answer.Message, where(answer.Line, answer.Column))
		return
	case "size":
		scan(
			opaqueSize,
			"the code is too large or too deeply nested to be analyzed completely",
			where(answer.Line, answer.Column),
		)
	}
	w := pythonWalker{a: a, nesting: nesting}
	for _, f := range answer.Facts {
		w.add(&f, where(f.Line, f.Column))
	}
}

// nestedPython collects the facts of Python code that other code runs. what names the command or function that runs it.
func (a *analysis) nestedPython(what, code string, at place, nesting int) {
	if unreadable(code) {
		a.opaqueCode(what, at)
		return
	}
	a.python(code, &at, nesting+1)
}

// pythonWalker adds the facts that facts.py found, and analyzes the commands and code that they start.
type pythonWalker struct {
	a       *analysis
	nesting int
	cwd     string
}

func (w *pythonWalker) add(f *pythonFact, at place) {
	switch f.Kind {
	case "import":
		w.a.add(&fact{kind: kindImport, name: f.Name, place: at})
	case "text":
		w.a.text(f.Name, at)
	case "shape":
		w.a.add(&fact{kind: kindShape, name: f.Name, place: at})
	case "opaque":
		w.a.opaque(opaqueCommand, f.Name, at)
	case "call":
		w.call(f, at)
	}
}

// The calls that run a program, and for calls that write a file the index of the argument with its name.
var (
	runsShell = strings.Fields("os.system os.popen subprocess.getoutput subprocess.getstatusoutput posix.system " +
		"commands.getoutput asyncio.create_subprocess_shell get_ipython.system get_ipython.getoutput pty.spawn")
	runsProgram = strings.Fields("subprocess.run subprocess.call subprocess.check_call subprocess.check_output " +
		"subprocess.Popen asyncio.create_subprocess_exec")
	runsCode  = strings.Fields("exec eval compile")
	opensFile = strings.Fields("open io.open os.open pathlib.Path.open")
	writes    = map[string]int{
		"os.link": 1, "os.rename": 1, "os.replace": 1, "os.symlink": 1, "os.truncate": 0,
		"pathlib.Path.touch": 0, "pathlib.Path.write_bytes": 0, "pathlib.Path.write_text": 0,
		"shutil.copy": 1, "shutil.copy2": 1, "shutil.copyfile": 1, "shutil.move": 1,
	}
)

// call adds a call, the files that it reads or writes, and the code that it starts.
func (w *pythonWalker) call(c *pythonFact, at place) {
	f := &fact{kind: kindCall, name: c.Name, cwd: w.cwd, place: at, keywords: map[string]string{}, doubt: c.Doubt}
	for _, arg := range c.Args {
		f.args = append(f.args, arg.text)
	}
	for k, arg := range c.Keywords {
		f.keywords[k] = arg.text
	}
	w.a.add(f)
	file := func(k kind, name string) {
		w.a.add(&fact{kind: k, args: []string{name}, cwd: w.cwd, place: at})
	}
	first, name := c.first(), c.Name
	written, isWrite := writes[name]
	switch {
	case name == "os.chdir":
		w.cwd = ""
		if known(first.text) && (strings.HasPrefix(first.text, "/") || strings.HasPrefix(first.text, "~")) {
			w.cwd = first.text
		}
	case slices.Contains(runsCode, name):
		w.a.nestedPython(name, first.text, at, w.nesting)
	case slices.Contains(opensFile, name):
		if mode := c.mode(); strings.ContainsAny(mode, "wax+") {
			file(kindWrite, first.text)
		} else {
			file(kindRead, first.text)
		}
	case slices.Contains(runsShell, name):
		w.shell(at).nested(name, first.text, at)
	case slices.Contains(runsProgram, name):
		inShell, ok := c.Keywords["shell"]
		switch {
		case first.isList:
			w.program(first.list, at)
		case ok && inShell.text != "False":
			w.shell(at).nested(name, first.text, at)
		default:
			w.program([]string{first.text}, at)
		}
	case strings.HasPrefix(name, "os.exec"), strings.HasPrefix(name, "os.posix_spawn"):
		w.exec(c.Args, at)
	case strings.HasPrefix(name, "os.spawn") && len(c.Args) > 0:
		w.exec(c.Args[1:], at)
	case isWrite && written < len(c.Args):
		file(kindWrite, c.Args[written].text)
	case strings.HasPrefix(name, "pathlib.Path.read_"):
		file(kindRead, first.text)
	}
}

// first returns the first argument of a call, or the keyword argument in its place.
func (f *pythonFact) first() argument {
	if len(f.Args) > 0 {
		return f.Args[0]
	}
	for _, k := range []string{"args", "command", "cmd", "file", "path", "source"} {
		if v, ok := f.Keywords[k]; ok {
			return v
		}
	}
	return argument{text: holeText}
}

// mode returns the mode in which a call opens a file.
func (f *pythonFact) mode() string {
	if v, ok := f.Keywords["mode"]; ok {
		return v.text
	}
	if len(f.Args) > 1 {
		return f.Args[1].text
	}
	return "r"
}

// shell returns a shell whose commands are reported at a position of the Python code.
func (w *pythonWalker) shell(at place) *shell {
	sh := newShell(w.a, &at, w.nesting+1)
	sh.cwd = w.cwd
	return sh
}

func (w *pythonWalker) program(argv []string, at place) {
	if len(argv) > 1 && argv[0] == holeText && (argv[1] == "-c" || argv[1] == "-m" || strings.HasSuffix(argv[1], ".py")) {
		argv = append([]string{"python3"}, argv[1:]...) // sys.executable
	}
	w.shell(at).run(argv, unknown, at)
}

// exec follows os.execv and its variants: a program, then its arguments in a list or one by one, its name first.
func (w *pythonWalker) exec(args []argument, at place) {
	if len(args) == 0 {
		return
	}
	argv := []string{args[0].text}
	for i, arg := range args[1:] {
		switch {
		case len(arg.list) > 0:
			argv = append(argv, arg.list[1:]...)
		case !arg.isList && i > 0:
			argv = append(argv, arg.text)
		}
	}
	w.program(argv, at)
}
