package rules

import (
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// wrapper describes the arguments of a program that runs another program.
type wrapper struct {
	valued   string   // short flags that take a value
	long     []string // long flags that take a value
	operands int      // its own operands, before the program
	assigns  bool     // NAME=value is allowed before the program
}

var wrappers = map[string]wrapper{
	"chroot":   {operands: 1},
	"chrt":     {operands: 1},
	"doas":     {valued: "uC"},
	"env":      {valued: "uSC", long: []string{"--unset", "--chdir", "--split-string"}, assigns: true},
	"exec":     {valued: "a"},
	"flock":    {valued: "wE", operands: 1},
	"ionice":   {valued: "cnp"},
	"nice":     {valued: "n", long: []string{"--adjustment"}},
	"parallel": {valued: "jI", long: []string{"--jobs"}},
	"stdbuf":   {valued: "ioe"},
	"strace":   {valued: "eopsEu"},
	"sudo":     {valued: "ugpChDrtUT", long: []string{"--user", "--group", "--chdir", "--host"}, assigns: true},
	"taskset":  {operands: 1},
	"time":     {valued: "fo"},
	"timeout":  {valued: "ks", long: []string{"--signal", "--kill-after"}, operands: 1},
	"watch":    {valued: "n", long: []string{"--interval"}},
	"xvfb-run": {valued: "nse"},

	"builtin": {}, "busybox": {}, "command": {}, "nohup": {}, "setsid": {}, "toybox": {}, "unshare": {},
}

// unwrap walks the program that a wrapper such as sudo or env runs. done reports whether there is one.
func (sh *shell) unwrap(name string, args []string, in stream, p place) (out stream, done bool) {
	switch name {
	case "xargs":
		return sh.xargs(args, in, p), true
	case "find", "fd":
		sh.find(args, in, p)
		return stream{}, false
	case "su", "runuser":
		for i, a := range args {
			if (a == "-c" || a == "--command") && i+1 < len(args) {
				return sh.child(name+" -c", args[i+1], nil, p), true
			}
		}
		return stream{}, false
	}
	w, ok := wrappers[name]
	if !ok {
		return stream{}, false
	}
	operands := w.operands
	for i := 0; i < len(args); i++ {
		a := args[i]
		key, value, assigns := strings.Cut(a, "=")
		switch {
		case a == "--":
		case name == "env" && (a == "-S" || a == "--split-string") && i+1 < len(args):
			return sh.nested("env -S", args[i+1]+" "+quoteAll(args[i+2:]), p), true
		case strings.HasPrefix(a, "--"):
			if slices.Contains(w.long, a) {
				i++
			}
		case strings.HasPrefix(a, "-") && len(a) > 1:
			if len(a) == 2 && strings.Contains(w.valued, a[1:]) {
				i++
			}
		case w.assigns && assigns && syntax.ValidName(key):
			sh.set(key, value)
		case operands > 0:
			operands--
		case name == "watch" || (name == "parallel" && strings.Contains(a, " ")):
			return sh.nested(name, strings.Join(args[i:], " "), p), true
		default:
			return sh.run(args[i:], in, p), true
		}
	}
	return stream{}, false
}

// xargs walks the command that gets its arguments from the input.
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
	items := firstItems(strings.Fields(strings.ReplaceAll(in.text, "\x00", " ")))
	in = stream{text: holeText, from: in.from}
	if replace == "" {
		return sh.run(append(args[:len(args):len(args)], items...), in, p)
	}
	for _, item := range items {
		sh.run(replaceAll(args, replace, item), in, p)
	}
	return in
}

func replaceAll(argv []string, from, to string) []string {
	out := make([]string, len(argv))
	for i, a := range argv {
		out[i] = strings.ReplaceAll(a, from, to)
	}
	return out
}

// narrowing lists the tests of find that exclude files, so that the root of the search itself is not affected.
var narrowing = strings.Fields(
	"-name -iname -path -ipath -regex -mtime -mmin -atime -ctime -newer -size -user -empty " +
		"-perm -inum -links -nouser -samefile -wholename",
)

// find walks what find does to the files it finds.
func (sh *shell) find(args []string, in stream, p place) {
	end := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "-") || a == "(" || a == "!" })
	roots := args
	if end >= 0 {
		roots = args[:end:end]
	}
	if len(roots) == 0 {
		roots = []string{"."}
	}
	narrow := slices.ContainsFunc(args, func(a string) bool { return slices.Contains(narrowing, a) })
	for i, a := range args {
		switch a {
		case "-delete":
			if !narrow {
				sh.run(append([]string{"rm", "-r"}, roots...), in, p)
			}
		case "-exec", "-execdir", "-ok", "-okdir":
			argv := args[i+1:]
			if end := slices.IndexFunc(argv, func(b string) bool { return b == ";" || b == "+" }); end >= 0 {
				argv = argv[:end]
			}
			for _, root := range roots {
				switch {
				case narrow && root == "/":
					root = "/" + holeText + "/" + holeText
				case narrow:
					root = path.Join(root, holeText) + holeText
				}
				sh.run(replaceAll(argv, "{}", root), in, p)
			}
		}
	}
}
