package rules

import (
	"slices"
	"strconv"
	"strings"

	"github.com/recluse-dev/recluse/internal/lazyregexp"
)

// effects walks the side effects of well-known programs: commands that they start, and files that they remove.
func (sh *shell) effects(name string, args []string, in stream, p place) {
	words := splitArgs(args)
	last := max(len(words.operands)-1, 0)
	switch name {
	case "awk", "gawk", "mawk", "nawk":
		for _, program := range words.operands {
			sh.started(name, awkCommands(program), p)
		}
	case "sed", "gsed":
		for _, script := range sedScripts(args) {
			sh.started(name, sedCommands(script), p)
		}
	case "rsync": // --delete empties the target first
		deletes := slices.ContainsFunc(words.flags, func(f string) bool { return strings.HasPrefix(f, "--del") })
		if deletes && words.flag([]string{"-n", "--dry-run"}) != yes && last > 0 &&
			!strings.Contains(words.operands[last], ":") {
			sh.run([]string{"rm", "-r", words.operands[last]}, in, p)
		}
	case "mv":
		if last > 0 && words.operands[last] == "/dev/null" {
			sh.run(append([]string{"rm", "-r"}, words.operands[:last]...), in, p)
		}
	}
}

// started walks shell commands that a program starts. An empty command is unknown.
func (sh *shell) started(program string, commands []string, p place) {
	for _, c := range commands {
		if c == "" {
			c = holeText
		}
		sh.child(program, c, nil, p)
	}
}

var (
	// awkLiteral matches a text, a regular expression or a comment that begins here.
	awkLiteral = lazyregexp.New(`^(?:"(?:\\.|[^"\\])*"|/(?:\\.|\[[^]\n]+\]|[^/\\\n])*/|#[^\n]*)`)
	// awkStarts matches what starts a command in awk, where texts are replaced by their numbers: system("COMMAND"),
	// "COMMAND" | getline, and print | "COMMAND". A match without a number starts a command that awk puts together.
	awkStarts = lazyregexp.New(`\bsystem\s*\(\s*(?:"(\d+)"\s*\))?|"(\d+)"\s*\|&?\s*getline|` +
		`\bprintf?\b[^|{};\n]*\|&?\s*(?:"(\d+)"|[A-Za-z_])|[\w)]\s*\|&?\s*getline`)
)

// awkCommands returns the shell commands that an awk program starts; "" is an unknown command.
func awkCommands(program string) (commands []string) {
	program, texts := awkTexts(program)
	for _, m := range awkStarts().FindAllStringSubmatch(program, maxAlternatives) {
		command := ""
		if n, err := strconv.Atoi(m[1] + m[2] + m[3]); err == nil {
			command = texts[n]
		}
		commands = append(commands, command)
	}
	return commands
}

// awkTexts replaces the texts of an awk program by their numbers, and leaves out regular expressions and comments.
func awkTexts(program string) (string, []string) {
	var (
		out   strings.Builder
		texts []string
	)
	for program != "" {
		i := strings.IndexAny(program, `"/#`)
		if i < 0 {
			out.WriteString(program)
			break
		}
		out.WriteString(program[:i])
		literal := awkLiteral().FindString(program[i:])
		switch {
		case literal == "" || literal[0] == '/' && awkDivides(out.String()):
			literal = program[i : i+1]
			out.WriteString(literal)
		case literal[0] == '"':
			out.WriteString(`"` + strconv.Itoa(len(texts)) + `"`)
			texts = append(texts, strings.ReplaceAll(literal[1:len(literal)-1], `\"`, `"`))
		}
		program = program[i+len(literal):]
	}
	return out.String(), texts
}

// awkDivides reports whether a slash is a division, that is, whether a value precedes it.
func awkDivides(before string) bool {
	before = strings.TrimRight(before, " \t")
	if before == "" {
		return false
	}
	last := before[len(before)-1]
	return last == '_' || last == ')' || last == ']' || last == '"' ||
		'0' <= last && last <= '9' || 'a' <= last|0x20 && last|0x20 <= 'z' ||
		strings.HasSuffix(before, "++") || strings.HasSuffix(before, "--")
}

// sedScripts returns the scripts among the arguments of sed.
func sedScripts(args []string) (scripts []string) {
	for i, a := range args {
		short, joined := strings.CutPrefix(a, "-e")
		long, ok := strings.CutPrefix(a, "--expression=")
		switch {
		case (a == "-e" || a == "--expression" || a == "-ne") && i+1 < len(args):
			scripts = append(scripts, args[i+1])
		case ok:
			scripts = append(scripts, long)
		case joined && short != "":
			scripts = append(scripts, short)
		}
	}
	if operands := splitArgs(args).operands; len(scripts) == 0 && len(operands) > 0 {
		scripts = operands[:1]
	}
	return scripts
}

var (
	sedAddress = lazyregexp.New(
		`^[\s;{}]*(?:(?:\d+(?:~\d+)?|\$|/(?:\\.|[^/\\])*/[IM]*)\s*(?:,\s*[+~]?(?:\d+|\$|/(?:\\.|[^/\\])*/[IM]*))?)?[\s!]*`,
	)
	sedFlags = lazyregexp.New(`^[a-zA-Z0-9]*`)
)

// sedCommands returns the shell commands that a script of sed starts: those of its command e, and "" where it runs
// lines of its input.
func sedCommands(script string) (commands []string) {
	for script != "" {
		script = script[len(sedAddress().FindString(script)):]
		if script == "" {
			break
		}
		line, _, _ := strings.Cut(script, "\n")
		command := script[0]
		switch command {
		case 'e':
			text := strings.TrimSpace(line[1:])
			if strings.Trim(text, ";}") == "" {
				text = ""
			}
			commands = append(commands, text)
			script = script[len(line):]
		case 's', 'y':
			script = afterDelimited(script[1:])
			flags, _, writes := strings.Cut(sedFlags().FindString(script), "w")
			if command == 's' && strings.Contains(flags, "e") {
				commands = append(commands, "")
			}
			if script = script[len(flags):]; writes { // the rest of the line is the file's name
				line, _, _ = strings.Cut(script, "\n")
				script = script[len(line):]
			}
		case 'a', 'i', 'c', 'r', 'R', 'w', 'W', '#':
			script = script[len(line):]
		case ':', 'b', 't', 'T':
			script = script[len(line[:strings.IndexAny(line+";", ";}")]):]
		default:
			script = script[1:]
		}
	}
	return commands
}

// afterDelimited returns what follows the two texts of an s or y command: /a/b/.
func afterDelimited(s string) string {
	if s == "" {
		return ""
	}
	delimiter, seen := s[0], 0
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case delimiter:
			if seen++; seen == 2 {
				return s[i+1:]
			}
		}
	}
	return ""
}
