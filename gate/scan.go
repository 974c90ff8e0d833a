package gate

import (
	"regexp"
	"slices"
	"strings"
)

// scan looks Python code over without parsing it: strings and comments are told from code, and imports and calls
// are taken from what is left. Whatever it finds is unsure.
func (a *analysis) scan(code string, fixed *place) {
	text, strs := blankStrings(code)
	var lines []int // where they end
	for i := range len(code) {
		if code[i] == '\n' {
			lines = append(lines, i)
		}
	}
	where := func(offset int) place {
		if fixed != nil {
			return *fixed
		}
		n, _ := slices.BinarySearch(lines, offset)
		if n == 0 {
			return place{line: 1, column: offset + 1}
		}
		return place{line: n + 1, column: offset - lines[n-1]}
	}
	left := 500 // findings by a glance are worth only so much
	for _, m := range scanImport.FindAllStringSubmatchIndex(text, left) {
		for _, name := range strings.Split(text[m[2]:m[3]], ",") {
			if f := strings.Fields(name); len(f) > 0 {
				a.add(&fact{kind: kindImport, name: f[0], place: where(m[2]), unsure: true})
			}
		}
	}
	for _, m := range scanCall.FindAllStringSubmatchIndex(text, left) {
		name := text[m[2]:m[3]]
		f := &fact{kind: kindCall, name: name, place: where(m[2]), unsure: true, args: []string{holeText}}
		open := m[1]
		for open < len(code) && (code[open] == ' ' || code[open] == '\t') {
			open++
		}
		if s, ok := strs[open]; ok {
			f.args[0] = s
		}
		a.add(f)
		if runsShell[name] && known(f.args[0]) {
			before := len(a.facts)
			at := where(m[2])
			newShell(a, &at, 1).nested(name, f.args[0], stream{text: holeText}, at)
			for _, g := range a.facts[before:] {
				g.unsure = true
			}
		}
	}
	for offset, s := range strs {
		if left--; left < 0 {
			break
		}
		a.text(s, where(offset))
	}
}

var (
	scanImport = regexp.MustCompile(`(?m)^[ \t]*(?:import|from)[ \t]+([\w., \t]+)`)
	scanCall   = regexp.MustCompile(`([A-Za-z_][\w.]*)[ \t]*\(`)
)

// blankStrings takes strings and comments out of Python code and gives the strings by where they begin.
func blankStrings(code string) (string, map[int]string) {
	out := []byte(code)
	strs := map[int]string{}
	blank := func(from, to int) {
		for i := from; i < to; i++ {
			if out[i] != '\n' {
				out[i] = ' '
			}
		}
	}
	for i := 0; i < len(code); {
		switch c := code[i]; c {
		case '#':
			end := strings.IndexByte(code[i:], '\n')
			if end < 0 {
				end = len(code) - i
			}
			blank(i, i+end)
			i += end
		case '"', '\'':
			end, content := stringEnd(code, i)
			strs[i] = content
			blank(i, end)
			i = end
		default:
			i++
		}
	}
	return string(out), strs
}

// stringEnd gives the end of the string that begins at i, and what is in it.
func stringEnd(code string, i int) (end int, content string) {
	quote := code[i : i+1]
	if strings.HasPrefix(code[i:], strings.Repeat(quote, 3)) {
		quote = strings.Repeat(quote, 3)
	}
	from := i + len(quote)
	for j := from; j < len(code); j++ {
		switch {
		case code[j] == '\\':
			j++
		case strings.HasPrefix(code[j:], quote):
			return j + len(quote), code[from:j]
		case code[j] == '\n' && len(quote) == 1:
			return j, code[from:j]
		}
	}
	return len(code), code[min(from, len(code)):]
}
