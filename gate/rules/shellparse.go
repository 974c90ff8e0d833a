package rules

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"
)

// parseShell returns the statements before the first error, and that error.
func parseShell(code string) (list []*syntax.Stmt, err error) {
	// The input may be hostile: a panic of the parser must not crash the program.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the parser panicked: %v", r)
		}
	}()
	for s, fail := range syntax.NewParser(syntax.Variant(syntax.LangBash)).StmtsSeq(strings.NewReader(asText(code))) {
		// No break: the parser may report a second error after the first, and panics if the loop has ended.
		if fail != nil {
			err = cmp.Or(err, fail)
			continue
		}
		list = append(list, s)
	}
	return list, err
}

// asText converts code to valid UTF-8 for the parser. A shell accepts invalid bytes and runs the code around them. Each
// such byte is replaced by its own letter, so that different names stay different.
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

// parseError returns the message and the position of an error of the parser.
func parseError(err error) (string, syntax.Pos) {
	if pe, ok := errors.AsType[syntax.ParseError](err); ok {
		return pe.Text, pe.Pos
	}
	if le, ok := errors.AsType[syntax.LangError](err); ok {
		return err.Error(), le.Pos
	}
	return err.Error(), syntax.Pos{}
}

// opening maps keywords to what they add to the depth of code.
var opening = map[string]int{
	"if": 1, "while": 1, "until": 1, "for": 1, "case": 1, "time": 1, "coproc": 1, "fi": -1, "done": -1, "esac": -1,
}

// tooDeep reports whether code opens so many brackets and blocks that parsing could overflow our stack.
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
			// A here-document need not be balanced, and code that spans lines is rarely deep.
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
