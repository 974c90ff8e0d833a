package rlm

import (
	"encoding/json"
	"strings"

	"github.com/recluse-dev/recluse/internal/lazyregexp"
)

// actionKind is what a piece of a reply asks for.
type actionKind string

const (
	actCell     actionKind = "cell"     // Python, in the live interpreter
	actCommand  actionKind = "command"  // bash
	actQuery    actionKind = "query"    // a plain sub-model call
	actQueries  actionKind = "queries"  // several at once
	actSnapshot actionKind = "snapshot" // remember the machine under a name
	actRollback actionKind = "rollback" // and go back to it
)

// action is one thing to do, in the order of the reply.
type action struct {
	kind  actionKind
	text  string
	items []string // of actQueries
	end   int      // offset in the reply behind it
	open  bool     // the block was not closed
}

// finalForm is an answer given in the text.
type finalForm struct {
	variable bool   // FINAL_VAR
	text     string // the answer, or the variable's name
	bad      string // why it cannot be used
}

// reading is what a reply asks for.
type reading struct {
	actions  []action
	final    *finalForm
	untagged bool // there was a block, but none that says it is to be run
}

// fence is an opening line of a block.
type fence struct {
	char   byte
	length int
	indent int
	tag    string
}

// tags are the words after a fence that make it run.
var tags = map[string]actionKind{
	"repl": actCell, "python": actCell, "py": actCell, "python3": actCell, "ipython": actCell,
	"bash": actCommand, "sh": actCommand, "shell": actCommand,
}

// readReply finds the blocks to run; only when there are none does it look for answers and commands in the text.
func readReply(text string) reading {
	var r reading
	var prose strings.Builder // the text outside of fences, same length, so that offsets stay
	at := 0
	for at < len(text) {
		line, next := lineAt(text, at)
		f, ok := openFence(line)
		if !ok {
			prose.WriteString(text[at:next])
			at = next
			continue
		}
		kind, run := tags[f.tag]
		body, end, closed := readBlock(text, next, f, kind == actCell)
		prose.WriteString(strings.Repeat("\n", end-at))
		if run {
			if strings.TrimSpace(body) != "" {
				r.actions = append(r.actions, action{kind: kind, text: body, end: end, open: !closed})
			}
		} else if f.tag == "" {
			r.untagged = true
		}
		at = end
	}
	if len(r.actions) > 0 {
		r.final = readFinal(prose.String())
		return r
	}
	r.actions = readCommands(prose.String())
	if len(r.actions) == 0 {
		r.final = readFinal(prose.String())
	}
	return r
}

// firstBlockEnd gives the offset behind the first closed block to run, or 0 while there is none.
func firstBlockEnd(text string) int {
	at := 0
	for at < len(text) {
		line, next := lineAt(text, at)
		f, ok := openFence(line)
		if !ok {
			at = next
			continue
		}
		kind, run := tags[f.tag]
		end, closed := 0, false
		if kind == actCell {
			end, closed = closeOutsideStrings(text, next, f) // a string that has not ended may yet
		} else {
			end, closed = closeBlock(text, next, f, false)
		}
		if !closed {
			return 0
		}
		if run && strings.TrimSpace(text[next:end]) != "" {
			// The last line may go on: "```" could become "```` ".
			if end < len(text) || strings.HasSuffix(text, "\n") {
				return end
			}
			return 0
		}
		at = end
	}
	return 0
}

func lineAt(text string, at int) (line string, next int) {
	if i := strings.IndexByte(text[at:], '\n'); i >= 0 {
		return text[at : at+i], at + i + 1
	}
	return text[at:], len(text)
}

// openFence reads a line that begins a block.
func openFence(line string) (fence, bool) {
	line = strings.TrimRight(line, "\r")
	body := strings.TrimLeft(line, " \t")
	f := fence{indent: len(line) - len(body)}
	if body == "" || body[0] != '`' && body[0] != '~' {
		return f, false
	}
	f.char = body[0]
	rest := strings.TrimLeft(body, string(f.char))
	f.length = len(body) - len(rest)
	if f.length < 3 || f.char == '`' && strings.Contains(rest, "`") {
		return f, false
	}
	words := strings.FieldsFunc(rest, func(r rune) bool { return r == ' ' || r == '\t' || r == '{' || r == '}' || r == ',' || r == ':' })
	if len(words) > 0 {
		f.tag = strings.ToLower(strings.TrimPrefix(words[0], "."))
	}
	return f, true
}

// closes reports a line that is nothing but the end of the block.
func (f fence) closes(line string) bool {
	body := strings.TrimSpace(line)
	return len(body) >= f.length && strings.Trim(body, string(f.char)) == ""
}

// closesLate reports a line with code before the end of the block, and where the code ends.
func (f fence) closesLate(line string) (int, bool) {
	body := strings.TrimRight(line, " \t\r")
	code := strings.TrimRight(body, string(f.char))
	if n := len(body) - len(code); n < f.length || strings.TrimSpace(code) == "" {
		return 0, false
	}
	return len(code), true
}

// readBlock gives a block's code and the offset behind it.
func readBlock(text string, at int, f fence, python bool) (body string, end int, closed bool) {
	end, closed = closeBlock(text, at, f, python)
	body = text[at:end]
	if closed {
		body = strings.TrimRight(body, "\r\n \t")
		cut := strings.TrimRight(body, string(f.char))
		if len(body)-len(cut) > f.length && strings.HasSuffix(strings.TrimRight(cut, " \t"), "\n") {
			body = cut
		} else {
			body = body[:len(body)-f.length]
			body = strings.TrimRight(body, string(f.char))
		}
	}
	body = strings.ReplaceAll(body, "\r\n", "\n")
	if f.indent > 0 {
		lines := strings.Split(body, "\n")
		for i, l := range lines {
			n := 0
			for n < f.indent && n < len(l) && (l[n] == ' ' || l[n] == '\t') {
				n++
			}
			lines[i] = l[n:]
		}
		body = strings.Join(lines, "\n")
	}
	return strings.TrimRight(body, " \t\n"), end, closed
}

// closeBlock finds the offset behind the line that closes a block. In Python a fence inside of a string does not close it, unless
// nothing else would: then the string was never meant to be that long.
func closeBlock(text string, at int, f fence, python bool) (end int, closed bool) {
	if python {
		if end, ok := closeOutsideStrings(text, at, f); ok {
			return end, true
		}
	}
	late := -1
	for at < len(text) {
		line, next := lineAt(text, at)
		if f.closes(line) {
			if late >= 0 && !python {
				return late, true
			}
			return next, true
		}
		if _, ok := f.closesLate(line); ok && late < 0 {
			late = next
		}
		at = next
	}
	if late >= 0 {
		return late, true
	}
	return len(text), false
}

func closeOutsideStrings(text string, at int, f fence) (int, bool) {
	var quote string // what ends the string we are in
	for at < len(text) {
		line, next := lineAt(text, at)
		if quote == "" && f.closes(line) {
			return next, true
		}
		code, late := f.closesLate(line)
		for i := 0; i < len(line); {
			if quote != "" {
				switch {
				case line[i] == '\\':
					i += 2
				case strings.HasPrefix(line[i:], quote):
					i += len(quote)
					quote = ""
				default:
					i++
				}
				continue
			}
			if late && i == code {
				return next, true
			}
			switch c := line[i]; {
			case c == '#':
				i = len(line)
			case strings.HasPrefix(line[i:], `"""`), strings.HasPrefix(line[i:], `'''`):
				quote = line[i : i+3]
				i += 3
			case c == '"' || c == '\'':
				quote = string(c)
				i++
			default:
				i++
			}
		}
		if len(quote) == 1 && !strings.HasSuffix(strings.TrimRight(line, "\r"), `\`) {
			quote = "" // an ordinary string ends with its line
		}
		at = next
	}
	return 0, false
}

// --- answers in the text ---

var finalLine = lazyregexp.New(`(?m)^[ \t]*(?:\*\*)?(FINAL_VAR|FINAL)\(`)

func readFinal(prose string) *finalForm {
	m := finalLine().FindStringSubmatchIndex(prose)
	if m == nil {
		return nil
	}
	inner := argument(prose[m[1]:])
	if prose[m[2]:m[3]] == "FINAL_VAR" {
		name := strings.Trim(strings.TrimSpace(inner), "\"'` ")
		f := &finalForm{variable: true, text: name}
		if !identifier().MatchString(name) {
			f.bad = "FINAL_VAR takes the name of a variable"
		}
		return f
	}
	return &finalForm{text: unquote(strings.TrimSpace(inner))}
}

var identifier = lazyregexp.New(`^[\pL_][\pL\pN_]*$`)

// argument gives what stands before the bracket that closes a call.
func argument(s string) string {
	inner, _ := argumentEnd(s)
	return inner
}

// argumentEnd also gives the offset behind the bracket. Brackets in quotes do not count; an apostrophe in a word is no quote. Where
// brackets never balance, the last one of the text closes.
func argumentEnd(s string) (string, int) {
	depth := 1
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			if depth--; depth == 0 {
				return s[:i], i + 1
			}
		case '"', '\'':
			if i > 0 && wordByte(s[i-1]) {
				continue
			}
			if end := quoteEnd(s, i); end > 0 {
				i = end
			}
		}
	}
	if i := strings.LastIndexByte(s, ')'); i >= 0 {
		return s[:i], i + 1
	}
	line, next := lineAt(s, 0)
	return line, next
}

func wordByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

// quoteEnd gives the offset of the last byte of the string that begins at i, or 0 when it does not end.
func quoteEnd(s string, i int) int {
	q := s[i : i+1]
	if strings.HasPrefix(s[i:], strings.Repeat(q, 3)) {
		q = strings.Repeat(q, 3)
	}
	for j := i + len(q); j < len(s); j++ {
		switch {
		case s[j] == '\\':
			j++
		case strings.HasPrefix(s[j:], q):
			return j + len(q) - 1
		case len(q) == 1 && s[j] == '\n':
			return 0
		}
	}
	return 0
}

// unquote takes the quotes from a text that is one string and nothing else.
func unquote(s string) string {
	if len(s) < 2 || s[0] != '"' && s[0] != '\'' {
		return s
	}
	if quoteEnd(s, 0) != len(s)-1 {
		return s
	}
	n := 1
	if len(s) >= 6 && s[1] == s[0] && s[2] == s[0] {
		n = 3
	}
	inner := s[n : len(s)-n]
	if !strings.Contains(inner, `\`) {
		return inner
	}
	return strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\"`, `"`, `\'`, `'`, `\\`, `\`).Replace(inner)
}

// --- command words ---

var commandLine = lazyregexp.New(`(?m)^[ \t]*(RUN|CODE|QUERY_LLM_BATCHED|QUERY_LLM|SNAPSHOT|ROLLBACK)\(`)

// readCommands reads the dialect of command words at the beginning of lines.
func readCommands(prose string) []action {
	var out []action
	at := 0
	for {
		m := commandLine().FindStringSubmatchIndex(prose[at:])
		if m == nil {
			return out
		}
		word := prose[at+m[2] : at+m[3]]
		inner, n := argumentEnd(prose[at+m[1]:])
		at += m[1] + n
		a := action{text: unquote(strings.TrimSpace(inner)), end: at}
		switch word {
		case "RUN":
			a.kind = actCommand
		case "CODE":
			a.kind = actCell
		case "QUERY_LLM":
			a.kind = actQuery
		case "QUERY_LLM_BATCHED":
			a.kind, a.items = actQueries, stringList(inner)
		case "SNAPSHOT":
			a.kind = actSnapshot
		case "ROLLBACK":
			a.kind = actRollback
		}
		if a.text != "" {
			out = append(out, a)
		}
	}
}

// stringList reads ["a", 'b'].
func stringList(s string) []string {
	var out []string
	if json.Unmarshal([]byte(strings.TrimSpace(s)), &out) == nil {
		return out
	}
	out = nil
	for i := 0; i < len(s); i++ {
		if s[i] != '"' && s[i] != '\'' {
			continue
		}
		end := quoteEnd(s, i)
		if end == 0 {
			break
		}
		out = append(out, unquote(s[i:end+1]))
		i = end
	}
	return out
}

// stripFence takes a JSON text out of the block that models like to put it in.
func stripFence(s string) string {
	s = strings.TrimSpace(s)
	line, next := lineAt(s, 0)
	f, ok := openFence(line)
	if !ok {
		return s
	}
	body, _, _ := readBlock(s, next, f, false)
	return strings.TrimSpace(body)
}
