package gate

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"
)

// parseShell gives the statements before the first error, if there is one.
func parseShell(code string) (list []*syntax.Stmt, err error) {
	// The parser is not ours, and what it reads may be hostile: its panic must not be ours.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the parser gave up: %v", r)
		}
	}()
	for s, fail := range syntax.NewParser(syntax.Variant(syntax.LangBash)).StmtsSeq(strings.NewReader(asText(code))) {
		// No break: the parser may give a second error behind the first, and panics when nobody takes it.
		if fail != nil {
			err = cmp.Or(err, fail)
			continue
		}
		list = append(list, s)
	}
	return list, err
}

// asText gives code that the parser takes: a shell does not mind bytes that are no UTF-8, and runs what stands around them. Each becomes a
// letter of its own, so that different names stay different.
func asText(code string) string {
	if utf8.ValidString(code) {
		return code
	}
	var b strings.Builder
	for len(code) > 0 {
		r, n := utf8.DecodeRuneInString(code)
		if r == utf8.RuneError && n == 1 {
			r = rune(code[0])
		}
		b.WriteRune(r)
		code = code[n:]
	}
	return b.String()
}

func parseMessage(err error) string {
	if pe, ok := errors.AsType[syntax.ParseError](err); ok {
		return pe.Text
	}
	return err.Error()
}

// opening is what keywords add to the depth of code.
var opening = map[string]int{
	"if": 1, "while": 1, "until": 1, "for": 1, "case": 1, "time": 1, "coproc": 1, "fi": -1, "done": -1, "esac": -1,
}

// tooDeep guards our stack against code that only ever opens.
func tooDeep(code string) bool {
	const limit = 1000
	depth, word := 0, 0
	for i := 0; i < len(code); i++ {
		switch code[i] {
		case '(', '{', '[':
			depth++
		case ')', '}', ']':
			depth = max(0, depth-1)
		case '\n':
			// Text (a here-document, say) need not be balanced; code that spans lines is rarely deep.
			depth = depth * 3 / 4
		case ' ', '\t', ';':
			depth = max(0, depth+opening[code[word:i]])
			word = i + 1
		}
		if depth > limit {
			return true
		}
	}
	return false
}
