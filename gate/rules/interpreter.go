package rules

import (
	"slices"
	"strings"
)

// codeKind is where an interpreter gets its code.
type codeKind int

const (
	notInterpreter codeKind = iota
	codeFromInput           // its standard input
	codeInline              // an argument: bash -c CODE
	codeFromFile            // a file: bash FILE
	codeElsewhere           // a module, or missing
)

var shells = []string{"sh", "bash", "dash", "zsh", "ksh", "ash", "rbash"}

func isPython(name string) bool {
	rest, ok := strings.CutPrefix(name, "python")
	return ok && strings.Trim(rest, "0123456789.") == "" || name == "pypy3"
}

// codeOf returns where a program gets the code that it runs. rest begins with the code or the file name; the code's
// arguments follow.
func codeOf(name string, args []string) (kind codeKind, rest []string) {
	isShell, inline := slices.Contains(shells, name), "e"
	switch {
	case isShell:
		inline = "c"
	case isPython(name):
		inline = "cm"
	case !slices.Contains([]string{"perl", "ruby", "node", "php"}, name):
		return notInterpreter, nil
	}
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "-" || a == "-s" || a == "/dev/stdin":
			return codeFromInput, nil
		case isShell && slices.Contains([]string{"-o", "-O", "--rcfile", "--init-file"}, a):
			i++
		case strings.HasPrefix(a, "--") || strings.HasPrefix(a, "+"):
		case !strings.HasPrefix(a, "-"):
			return codeFromFile, args[i:]
		case strings.ContainsAny(a, inline):
			if i+1 == len(args) || isPython(name) && strings.HasSuffix(a, "m") {
				return codeElsewhere, nil
			}
			return codeInline, args[i+1:]
		}
	}
	return codeFromInput, nil
}

// interpreter walks the code that an interpreter runs, and returns its output.
func (sh *shell) interpreter(name string, kind codeKind, rest []string, in stream, p place) stream {
	out := stream{text: holeText, from: append(in.from[:len(in.from):len(in.from)], name)}
	what, code := name, in.text
	switch kind {
	case codeFromInput:
		if in.text == holeText && len(in.from) == 0 {
			return out // interactive
		}
	case codeInline:
		what, code, rest = name+" -c", rest[0], rest[min(2, len(rest)):] // the first argument is its own name
	case codeFromFile:
		text, ok := sh.file(rest[0])
		if !ok {
			return out
		}
		what, code, rest = name+" "+rest[0], text, rest[1:]
	default:
		return out
	}
	switch {
	case slices.Contains(shells, name):
		return sh.child(what, code, rest, p)
	case isPython(name):
		at := p
		if sh.fixed != nil {
			at = *sh.fixed
		}
		sh.a.nestedPython(what, code, at, sh.nesting)
	}
	return out
}
