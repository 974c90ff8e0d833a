package rules

import (
	"path"
	"strings"
)

// answer is the result of comparing a pattern with a text that may have holes.
type answer int

const (
	no answer = iota
	maybe
	yes
)

// pattern is text in which * stands for any text and ? for one character.
type pattern struct {
	text    string
	wild    bool   // it has * or ?
	plain   []rune // compiled for text
	slashed []rune // compiled for paths, where only ** matches a slash
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *pattern) UnmarshalText(text []byte) error {
	s := string(text)
	*p = pattern{text: s, wild: strings.ContainsAny(s, "*?"), plain: compile(s, false), slashed: compile(s, true)}
	return nil
}

// patterns match if one of them matches.
type patterns []pattern

// match compares the patterns with a text; a hole in the text may be anything.
func (ps patterns) match(text string) answer { return ps.compare(text, false) }

// matchPath compares the patterns with a path, in which * does not match slashes.
func (ps patterns) matchPath(name, cwd string) answer {
	if len(ps) == 0 {
		return no
	}
	return ps.compare(cleanPath(name, cwd), true)
}

func (ps patterns) compare(text string, slashes bool) answer {
	if len(ps) == 0 {
		return no
	}
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

// The wildcards of a compiled pattern.
const (
	anyText     = -1 // **, or * in plain text
	anyName     = -2 // * in a path: any text without slashes
	anyRune     = -3 // ? in plain text
	anyNameRune = -4 // ? in a path
)

func compile(pattern string, slashes bool) []rune {
	star, mark := rune(anyText), rune(anyRune)
	if slashes {
		star, mark = anyName, anyNameRune
	}
	var out []rune
	r := []rune(pattern)
	for i := 0; i < len(r); i++ {
		switch {
		case r[i] == '*' && i+1 < len(r) && r[i+1] == '*':
			out = append(out, anyText)
			i++
		case r[i] == '*':
			out = append(out, star)
		case r[i] == '?':
			out = append(out, mark)
		default:
			out = append(out, r[i])
		}
	}
	return out
}

// matches compares the text with the pattern, tracking all possible positions in the pattern at once. A hole is a
// character that only a star matches. If filled is true, a hole also matches any part of the pattern.
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
			switch p[i] {
			case anyText:
				next[i] = true
			case anyName:
				next[i] = next[i] || c != '/'
			case anyRune:
				next[i+1] = next[i+1] || c != hole
			case anyNameRune:
				next[i+1] = next[i+1] || c != '/' && c != hole
			case c:
				next[i+1] = next[i+1] || c != hole
			}
		}
		closure(next)
		cur, next = next, cur
	}
	return cur[len(p)]
}

// cleanPath returns a path in one form: absolute where the directory is known, without dots and doubled slashes.
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
