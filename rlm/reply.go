package rlm

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/recluse-dev/recluse/internal/lazyregexp"
)

// actionKind is the kind of an action.
type actionKind string

const (
	actCell     actionKind = "cell"     // Python, in the live interpreter
	actCommand  actionKind = "command"  // bash
	actQuery    actionKind = "query"    // a sub-call
	actQueries  actionKind = "queries"  // several concurrent sub-calls
	actSnapshot actionKind = "snapshot" // take a snapshot with a name
	actRollback actionKind = "rollback" // restore that snapshot
)

// action is one action that a reply requests.
type action struct {
	kind  actionKind
	text  string
	items []string // of actQueries
	end   int      // offset of the end of the action in the reply
	open  bool     // the block has no closing fence
}

// textAnswer is an answer in the text of a reply: FINAL(…) or FINAL_VAR(…).
type textAnswer struct {
	variable   bool   // FINAL_VAR
	text       string // the answer, or the name of the variable
	expression string // the argument as it was written, which may be an expression; empty: it cannot be one
	invalid    string // why the answer cannot be used; empty: it can
}

// parsedReply is a reply, split into actions and an answer.
type parsedReply struct {
	actions []action
	final   *textAnswer
	quoted  []quotedBlock // blocks that are not actions
}

// quotedBlock is a block whose tag does not make it an action.
type quotedBlock struct {
	tag  string
	text string
	open bool // it has no closing fence
}

// untagged returns the only block without a tag, or nil if there is none or more than one.
func (r *parsedReply) untagged() *quotedBlock {
	var only *quotedBlock
	for i := range r.quoted {
		if b := &r.quoted[i]; b.tag == "" {
			if only != nil {
				return nil
			}
			only = b
		}
	}
	return only
}

// hasUntagged reports whether the reply has a block without a tag.
func (r *parsedReply) hasUntagged() bool {
	return slices.ContainsFunc(r.quoted, func(b quotedBlock) bool { return b.tag == "" })
}

// fence is the opening line of a block.
type fence struct {
	char   byte
	length int
	indent int
	tag    string
}

// tags are the words after a fence that make its block an action.
var tags = map[string]actionKind{
	"repl": actCell, "python": actCell, "py": actCell, "python3": actCell, "ipython": actCell, "tool_code": actCell,
	"bash": actCommand, "sh": actCommand, "shell": actCommand,
}

// parseReply returns the blocks to run, and an answer in the text. If commands is set and there are no blocks, it
// searches the text for command words.
func parseReply(text string, commands bool) parsedReply {
	var r parsedReply
	var prose strings.Builder // the text outside of fences, padded so that offsets are the same
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
		} else {
			r.quoted = append(r.quoted, quotedBlock{tag: f.tag, text: body, open: !closed})
		}
		at = end
	}
	if len(r.actions) == 0 && commands {
		if r.actions = parseCommands(prose.String()); len(r.actions) > 0 {
			return r
		}
	}
	r.final = parseFinal(prose.String(), text)
	return r
}

// firstBlockEnd returns the offset of the end of the first complete block to run, or 0 if there is none yet.
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
			end, closed = closeOutsideStrings(text, next, f) // an open string may still be closed
		} else {
			end, closed = closeBlock(text, next, f, false)
		}
		if !closed {
			return 0
		}
		if run && strings.TrimSpace(text[next:end]) != "" {
			// The last line may be incomplete: "```" could become "```` ".
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

// openFence parses the opening line of a block.
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
	words := strings.FieldsFunc(rest, func(r rune) bool { return strings.ContainsRune(" \t{},:", r) })
	if len(words) > 0 {
		f.tag = strings.ToLower(strings.TrimPrefix(words[0], "."))
	}
	return f, true
}

// closes reports whether the line is only a closing fence.
func (f fence) closes(line string) bool {
	body := strings.TrimSpace(line)
	return len(body) >= f.length && strings.Trim(body, string(f.char)) == ""
}

// closesLate reports whether the line has code followed by a closing fence, and returns the offset of the fence.
func (f fence) closesLate(line string) (int, bool) {
	body := strings.TrimRight(line, " \t\r")
	code := strings.TrimRight(body, string(f.char))
	if n := len(body) - len(code); n < f.length || strings.TrimSpace(code) == "" {
		return 0, false
	}
	return len(code), true
}

// readBlock returns the code of a block that begins at offset at, and the offset of the end of the block.
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

// closeBlock returns the offset after the line that closes a block. In Python, a fence within a string does not close
// the block, unless there is no other closing fence: then the model forgot to close the string.
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

// closeOutsideStrings returns the offset after the first closing fence that is not within a Python string.
func closeOutsideStrings(text string, at int, f fence) (int, bool) {
	var quote string // closes the current string; empty: not in a string
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

// parseFinal returns the first FINAL(…) or FINAL_VAR(…) at the start of a line of the prose, or nil. The prose has the
// offsets of the text. The argument is read from the text, because it may contain a fence.
func parseFinal(prose, text string) *textAnswer {
	m := finalLine().FindStringSubmatchIndex(prose)
	if m == nil {
		return nil
	}
	inner := finalArgument(text[m[1]:])
	if prose[m[2]:m[3]] == "FINAL_VAR" {
		name := strings.Trim(strings.TrimSpace(inner), "\"'` ")
		f := &textAnswer{variable: true, text: name}
		if !identifier().MatchString(name) {
			f.invalid = "FINAL_VAR takes the name of a variable"
		}
		return f
	}
	inner = strings.TrimSpace(inner)
	if line, _ := lineAt(inner, 0); inner != "" {
		if _, fenced := openFence(line); fenced {
			return &textAnswer{text: stripFence(inner)}
		}
	}
	f := &textAnswer{text: unquote(inner)}
	if f.text == inner {
		f.expression = inner
	}
	return f
}

var identifier = lazyregexp.New(`^[\pL_][\pL\pN_]*$`)

// finalArgument returns the argument of a FINAL whose opening bracket is before s. The bracket that closes it ends its
// line: brackets in a sentence, as in "a) Anna, b) Bert", do not close it. Of several such brackets, the first with
// which all brackets balance closes it; if there is none, the one in the first line, else the last.
func finalArgument(s string) string {
	closing, inFirst := -1, -1
	for at := 0; at < len(s); {
		line, next := lineAt(s, at)
		end := strings.TrimRight(line, " \t\r*`.")
		if strings.HasSuffix(end, ")") {
			closing = at + len(end) - 1
			if at == 0 {
				inFirst = closing
			}
			if i := balancedEnd(s[:closing+1]); i == closing {
				return s[:i]
			}
		}
		at = next
	}
	switch {
	case inFirst >= 0:
		return s[:inFirst]
	case closing >= 0:
		return s[:closing]
	}
	inner, _ := argumentEnd(s)
	return inner
}

// argumentEnd returns the text before the bracket that closes a call, and the offset after the bracket. Brackets in
// quotes do not count. An apostrophe in a word is not a quote. If the brackets do not balance, the last round bracket
// of the text closes the call.
func argumentEnd(s string) (string, int) {
	if i := balancedEnd(s); i >= 0 {
		return s[:i], i + 1
	}
	if i := strings.LastIndexByte(s, ')'); i >= 0 {
		return s[:i], i + 1
	}
	line, next := lineAt(s, 0)
	return line, next
}

// balancedEnd returns the offset of the bracket that closes a call whose opening bracket is before s, or -1.
func balancedEnd(s string) int {
	depth := 1
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			if depth--; depth == 0 {
				return i
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
	return -1
}

func wordByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

// quoteEnd returns the offset of the last byte of the string literal that begins at i, or 0 if the literal is not
// closed.
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

// unquote returns the value of s if s is a single string literal; else it returns s unchanged.
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

// parseCommands returns the actions for command words at the beginning of lines, such as RUN(…).
func parseCommands(prose string) []action {
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

// stringList parses a list of string literals: ["a", 'b'].
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

// stripFence returns the content of a fenced block, because models often put JSON in one. Other text is returned
// trimmed.
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
