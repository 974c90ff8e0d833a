package gate

import (
	"encoding/base64"
	"encoding/hex"
	"path"
	"slices"
	"strings"
)

// output gives what a command writes, for the few commands by which code is hidden or put together.
func (sh *shell) output(name string, args []string, in stream) string {
	switch name {
	case "echo":
		return echo(args)
	case "printf":
		if len(args) > 0 && args[0] == "-v" {
			return ""
		}
		return printf(args)
	case "cat":
		return sh.cat(args, in)
	case "base64":
		if hasAny(args, "-d", "-D", "--decode", "-di") && known(in.text) {
			text, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(in.text), ""))
			if err == nil {
				return string(text)
			}
		}
	case "xxd":
		if hasAny(args, "-r", "-rp") && known(in.text) {
			if text, err := hex.DecodeString(strings.Join(strings.Fields(in.text), "")); err == nil {
				return string(text)
			}
		}
	case "rev":
		if known(in.text) {
			return reverseLines(in.text)
		}
	case "tr":
		return tr(args, in.text)
	case "tee":
		for _, a := range args {
			if !strings.HasPrefix(a, "-") {
				sh.keep(a, in.text, hasAny(args, "-a", "--append"))
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
	case "true", ":", "cd", "export", "set", "shopt", "alias", "unset", "mkdir", "rm", "touch", "cp", "mv", "chmod", "sleep", "trap", "eval":
		return ""
	}
	return holeText
}

func hasAny(args []string, flags ...string) bool {
	return slices.ContainsFunc(args, func(a string) bool { return slices.Contains(flags, a) })
}

func echo(args []string) string {
	end, interpret := "\n", false
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' && strings.Trim(args[0][1:], "neE") == "" {
		if strings.Contains(args[0], "n") {
			end = ""
		}
		interpret = interpret || strings.Contains(args[0], "e")
		args = args[1:]
	}
	text := strings.Join(args, " ")
	if interpret {
		text = escapes(text)
	}
	return text + end
}

// printf knows %s, %b and %%; another directive is a hole.
func printf(args []string) string {
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return ""
	}
	format, args := args[0], args[1:]
	var b strings.Builder
	for round := 0; round == 0 || (len(args) > 0 && round < maxIterations); round++ {
		used := false
		for i := 0; i < len(format); i++ {
			if format[i] != '%' || i+1 == len(format) {
				b.WriteByte(format[i])
				continue
			}
			i++
			if format[i] == '%' {
				b.WriteByte('%')
				continue
			}
			used = true
			arg := ""
			if len(args) > 0 {
				arg, args = args[0], args[1:]
			}
			switch format[i] {
			case 's':
				b.WriteString(arg)
			case 'b':
				b.WriteString(escapes(arg))
			default:
				b.WriteString(holeText)
			}
		}
		if !used {
			break
		}
	}
	// Escapes stand in the format; in what is hidden by them the arguments seldom have any of their own.
	return escapes(b.String())
}

func (sh *shell) cat(args []string, in stream) string {
	var b strings.Builder
	files := 0
	for _, a := range args {
		switch {
		case a == "-":
			b.WriteString(in.text)
			files++
		case strings.HasPrefix(a, "-"):
		default:
			b.WriteString(sh.file(a))
			files++
		}
	}
	if files == 0 {
		return in.text
	}
	return b.String()
}

func reverseLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		r := []rune(l)
		slices.Reverse(r)
		lines[i] = string(r)
	}
	return strings.Join(lines, "\n")
}

// tr knows sets of letters and ranges.
func tr(args []string, text string) string {
	if !known(text) || len(args) == 0 {
		return holeText
	}
	if args[0] == "-d" && len(args) == 2 {
		drop := trSet(args[1])
		return strings.Map(func(r rune) rune {
			if slices.Contains(drop, r) {
				return -1
			}
			return r
		}, text)
	}
	if len(args) != 2 || strings.HasPrefix(args[0], "-") {
		return holeText
	}
	from, to := trSet(args[0]), trSet(args[1])
	if len(from) == 0 || len(to) == 0 {
		return holeText
	}
	return strings.Map(func(r rune) rune {
		if i := slices.Index(from, r); i >= 0 {
			return to[min(i, len(to)-1)]
		}
		return r
	}, text)
}

func trSet(s string) []rune {
	r := []rune(escapes(s))
	var out []rune
	for i := 0; i < len(r); i++ {
		if i+2 < len(r) && r[i+1] == '-' && r[i+2] >= r[i] && r[i+2]-r[i] < 256 {
			for c := r[i]; c <= r[i+2]; c++ {
				out = append(out, c)
			}
			i += 2
			continue
		}
		out = append(out, r[i])
	}
	return out
}
