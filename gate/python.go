package gate

import (
	"encoding/json"
	"strings"
)

// pythonAnswer is what python/facts.py says about a piece of code.
type pythonAnswer struct {
	Error   string              `json:"error"`
	Message string              `json:"message"`
	Line    int                 `json:"line"`
	Column  int                 `json:"column"`
	Facts   [][]json.RawMessage `json:"facts"`
}

// python gathers the facts of Python code. fixed is where nested code stands in the outer one.
func (a *analysis) python(code string, fixed *place, nesting int) {
	start := place{line: 1, column: 1}
	if fixed != nil {
		start = *fixed
	}
	if nesting > maxNesting {
		a.opaque(opaqueSize, "code in code in code, too deep to follow", start)
		return
	}
	if len(code) > maxPythonCode {
		a.opaque(opaqueSize, "more than 4 MiB of Python", start)
		a.scan(code[:maxPythonCode], fixed)
		return
	}
	if a.parser == nil {
		a.opaque(opaqueSyntax, "there is no python3 on this host to parse the code, so it was only looked over", start)
		a.scan(code, fixed)
		return
	}
	answer, err := a.parser.parse(a.ctx, code)
	if err != nil {
		a.opaque(opaqueSize, "Python's parser gave up on the code, so it was only looked over", start)
		a.scan(code, fixed)
		return
	}
	where := func(line, column int) place {
		if fixed != nil {
			return *fixed
		}
		return place{line: max(line, 1), column: column}
	}
	switch answer.Error {
	case "syntax":
		a.opaque(opaqueSyntax, "not valid Python: "+answer.Message, where(answer.Line, answer.Column))
		a.scan(code, fixed)
		return
	case "size":
		a.opaque(opaqueSize, "the code is too large or too deep to be judged whole", where(answer.Line, answer.Column))
		a.scan(code, fixed)
	}
	p := pythonFacts{a: a, fixed: fixed, nesting: nesting}
	for _, raw := range answer.Facts {
		p.take(raw, where)
	}
}

// pythonFacts turns the answers of facts.py into facts, and follows the code that the code starts.
type pythonFacts struct {
	a       *analysis
	fixed   *place
	nesting int
	cwd     string
}

func (p *pythonFacts) take(raw []json.RawMessage, where func(int, int) place) {
	var what, name string
	var line, column int
	if len(raw) < 4 || !decode(raw[0], &what) || !decode(raw[1], &line) || !decode(raw[2], &column) || !decode(raw[3], &name) {
		return
	}
	at := where(line, column)
	switch what {
	case "import":
		p.a.add(&fact{kind: kindImport, name: name, place: at})
	case "text":
		p.a.text(name, at)
	case "shape":
		p.a.add(&fact{kind: kindShape, name: name, place: at})
	case "opaque":
		p.a.opaque(opaqueCommand, name, at)
	case "set":
		var key, value string
		if len(raw) == 6 && decode(raw[4], &key) && decode(raw[5], &value) {
			p.a.add(&fact{kind: kindCall, name: name + ".__setitem__", args: []string{key, value}, place: at})
		}
	case "call", "passed":
		var rawArgs []json.RawMessage
		var rawKeywords map[string]json.RawMessage
		if len(raw) != 6 || !decode(raw[4], &rawArgs) || !decode(raw[5], &rawKeywords) {
			return
		}
		p.call(name, rawArgs, rawKeywords, at)
	}
}

func decode(raw json.RawMessage, into any) bool { return json.Unmarshal(raw, into) == nil }

// argument is a text or a list of texts.
type argument struct {
	text string
	list []string
}

func readArgument(raw json.RawMessage) argument {
	var arg argument
	if !decode(raw, &arg.text) {
		if decode(raw, &arg.list) {
			arg.text = strings.Join(arg.list, " ")
		}
		if arg.list == nil {
			arg.list = []string{}
		}
	}
	return arg
}

// call notes a call, and what it does to files and which code it starts.
func (p *pythonFacts) call(name string, rawArgs []json.RawMessage, rawKeywords map[string]json.RawMessage, at place) {
	args := make([]argument, len(rawArgs))
	f := &fact{kind: kindCall, name: name, cwd: p.cwd, place: at, keywords: map[string]string{}}
	for i, r := range rawArgs {
		args[i] = readArgument(r)
		f.args = append(f.args, args[i].text)
	}
	keywords := map[string]argument{}
	for k, r := range rawKeywords {
		keywords[k] = readArgument(r)
		f.keywords[k] = keywords[k].text
	}
	p.a.add(f)
	first := argument{text: holeText}
	if len(args) > 0 {
		first = args[0]
	} else {
		for _, k := range []string{"args", "command", "cmd", "file", "path", "source"} {
			if v, ok := keywords[k]; ok {
				first = v
				break
			}
		}
	}
	switch {
	case name == "os.chdir" && len(args) > 0:
		p.cwd = ""
		if known(first.text) && (strings.HasPrefix(first.text, "/") || strings.HasPrefix(first.text, "~")) {
			p.cwd = first.text
		}
	case name == "exec" || name == "eval" || name == "compile":
		p.code(name, first.text, at)
	case name == "open" || name == "io.open" || name == "os.open" || name == "pathlib.Path.open":
		p.open(args, keywords, first.text, at)
	case runsShell[name]:
		p.shell(name, first.text, at)
	case runsProgram[name]:
		if first.list != nil {
			p.program(first.list, at)
		} else if v, ok := keywords["shell"]; ok && v.text != "False" {
			p.shell(name, first.text, at)
		} else {
			p.program([]string{first.text}, at)
		}
	case strings.HasPrefix(name, "os.exec") || strings.HasPrefix(name, "os.spawn") || strings.HasPrefix(name, "os.posix_spawn"):
		p.exec(name, args, at)
	case writes[name] >= 0 && writes[name] < len(args) && hasKey(writes, name):
		p.a.add(&fact{kind: kindWrite, args: []string{args[writes[name]].text}, cwd: p.cwd, place: at})
	case strings.HasPrefix(name, "pathlib.Path.read_"):
		p.a.add(&fact{kind: kindRead, args: []string{first.text}, cwd: p.cwd, place: at})
	}
}

func hasKey(m map[string]int, k string) bool { _, ok := m[k]; return ok }

var runsShell = map[string]bool{
	"os.system": true, "os.popen": true, "subprocess.getoutput": true, "subprocess.getstatusoutput": true, "posix.system": true, "commands.getoutput": true,
	"asyncio.create_subprocess_shell": true, "get_ipython.system": true, "get_ipython.getoutput": true, "pty.spawn": true,
}

var runsProgram = map[string]bool{
	"subprocess.run": true, "subprocess.call": true, "subprocess.check_call": true, "subprocess.check_output": true, "subprocess.Popen": true,
	"asyncio.create_subprocess_exec": true,
}

// writes names the argument of a call that is a file it writes.
var writes = map[string]int{
	"pathlib.Path.write_text": 0, "pathlib.Path.write_bytes": 0, "pathlib.Path.touch": 0, "shutil.copy": 1, "shutil.copyfile": 1, "shutil.copy2": 1,
	"shutil.move": 1, "os.rename": 1, "os.replace": 1, "os.symlink": 1, "os.link": 1, "os.truncate": 0,
}

// code judges Python that Python runs.
func (p *pythonFacts) code(what, code string, at place) {
	if strings.Trim(code, holeText+" \t\n") == "" && !known(code) {
		p.a.opaque(opaqueCode, what+" runs code that cannot be told from here", at)
		return
	}
	p.a.python(code, &at, p.nesting+1)
}

// sub is a shell whose commands stand at a place of the Python code.
func (p *pythonFacts) sub(at place) *shell {
	sh := newShell(p.a, &at, p.nesting+1)
	sh.cwd = p.cwd
	return sh
}

func (p *pythonFacts) shell(what, code string, at place) {
	sh := p.sub(at)
	sh.nested(what, code, stream{text: holeText}, at)
}

func (p *pythonFacts) program(argv []string, at place) {
	if len(argv) == 0 {
		return
	}
	if argv[0] == holeText && len(argv) > 1 && (argv[1] == "-c" || argv[1] == "-m" || strings.HasSuffix(argv[1], ".py")) {
		argv = append([]string{"python3"}, argv[1:]...) // sys.executable
	}
	p.sub(at).run(argv, stream{text: holeText}, at)
}

// exec judges os.execv and its kin: the program, then a list or the arguments one by one, each with the name first.
func (p *pythonFacts) exec(name string, args []argument, at place) {
	if strings.HasPrefix(name, "os.spawn") && len(args) > 0 {
		args = args[1:]
	}
	if len(args) == 0 {
		return
	}
	argv := []string{args[0].text}
	for i, arg := range args[1:] {
		switch {
		case len(arg.list) > 0:
			argv = append(argv, arg.list[1:]...)
		case arg.list == nil && i > 0:
			argv = append(argv, arg.text)
		}
	}
	p.program(argv, at)
}

func (p *pythonFacts) open(args []argument, keywords map[string]argument, name string, at place) {
	mode := "r"
	if len(args) > 1 {
		mode = args[1].text
	}
	if v, ok := keywords["mode"]; ok {
		mode = v.text
	}
	k := kindRead
	if strings.ContainsAny(mode, "wax+") {
		k = kindWrite
	}
	p.a.add(&fact{kind: k, args: []string{name}, cwd: p.cwd, place: at})
}
