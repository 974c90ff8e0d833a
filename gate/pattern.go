package gate

import (
	"path"
	"strings"
)

// answer is what comparing a pattern with a text that may have holes gives.
type answer int

const (
	no answer = iota
	maybe
	yes
)

// and is the weaker of two answers.
func (a answer) and(b answer) answer { return min(a, b) }

// or is the stronger of two answers.
func (a answer) or(b answer) answer { return max(a, b) }

// pattern is text in which * stands for any text and ? for one character.
type pattern struct {
	text    string
	wild    bool   // it has * or ?
	plain   []rune // compiled for text
	slashed []rune // compiled for paths, where * and ? do not match a slash, and ** does
}

func newPattern(text string) pattern {
	return pattern{text: text, wild: strings.ContainsAny(text, "*?"), plain: compilePattern(text, false), slashed: compilePattern(text, true)}
}

// patterns are several of which one is enough.
type patterns []pattern

// match compares a text; a hole in it may be anything.
func (ps patterns) match(text string, slashes bool) answer {
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "")
	}
	whole := known(text)
	var runes []rune
	best := no
	for i := range ps {
		p := &ps[i]
		if !p.wild && whole {
			if p.text == text {
				return yes
			}
			continue
		}
		if runes == nil {
			runes = []rune(text)
		}
		compiled := p.plain
		if slashes {
			compiled = p.slashed
		}
		if matches(compiled, runes, false) {
			return yes
		}
		if !whole && best == no && matches(compiled, runes, true) {
			best = maybe
		}
	}
	return best
}

// The tokens of a compiled pattern that stand for more than themselves.
const (
	anyText  = -1 // **, or * where slashes do not count
	anyName  = -2 // * between slashes
	anyRune  = -3 // ?
	anyChars = -4 // ? between slashes
)

func compilePattern(pattern string, slashes bool) []rune {
	var out []rune
	r := []rune(pattern)
	for i := 0; i < len(r); i++ {
		switch {
		case r[i] == '*' && i+1 < len(r) && r[i+1] == '*':
			out = append(out, anyText)
			i++
		case r[i] == '*' && slashes:
			out = append(out, anyName)
		case r[i] == '*':
			out = append(out, anyText)
		case r[i] == '?' && slashes:
			out = append(out, anyChars)
		case r[i] == '?':
			out = append(out, anyRune)
		default:
			out = append(out, r[i])
		}
	}
	return out
}

// matches runs the pattern over the text, all positions at once. A hole is a character that only a star
// matches; with filled it may also be whatever the pattern wants there.
func matches(p, t []rune, filled bool) bool {
	cur := make([]bool, len(p)+1)
	next := make([]bool, len(p)+1)
	closure := func(set []bool) {
		for i := range p {
			if set[i] && (p[i] == anyText || p[i] == anyName) {
				set[i+1] = true
			}
		}
	}
	cur[0] = true
	closure(cur)
	for _, c := range t {
		clear(next)
		for i := range cur {
			if !cur[i] {
				continue
			}
			if c == hole && filled {
				for j := i; j <= len(p); j++ {
					next[j] = true
				}
				break
			}
			if i == len(p) {
				continue
			}
			switch {
			case p[i] == anyText:
				next[i] = true
			case p[i] == anyName:
				next[i] = next[i] || c != '/'
			case p[i] == anyRune && c != hole, p[i] == anyChars && c != '/' && c != hole, p[i] == c && c != hole:
				next[i+1] = true
			}
		}
		closure(next)
		cur, next = next, cur
	}
	return cur[len(p)]
}

// cleanPath writes a path one way: absolute where the directory is known, without dots and doubled slashes.
func cleanPath(text, cwd string) string {
	for _, home := range []string{"$HOME", "${HOME}"} {
		if rest, ok := strings.CutPrefix(text, home); ok {
			text = "~" + rest
		}
	}
	if text == "" {
		return ""
	}
	if !strings.HasPrefix(text, "/") && !strings.HasPrefix(text, "~") && !strings.HasPrefix(text, holeText) && cwd != "" {
		text = cwd + "/" + text
	}
	if strings.HasPrefix(text, "//") {
		text = "/" + strings.TrimLeft(text, "/")
	}
	return path.Clean(text)
}
