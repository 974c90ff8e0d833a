package rules

import (
	"slices"
	"strings"

	"github.com/recluse-dev/recluse/internal/lazyregexp"
)

// maxScanned is the number of tokens that are scanned in code that is not parsed.
const maxScanned = 5000

// pythonToken matches a comment, a string (its content is group 1, 2, 3 or 4), an import (its modules are group 5) or
// the beginning of a call (its name is group 6).
var pythonToken = lazyregexp.New(`(?m)#.*` +
	`|"""((?s:\\.|.)*?)(?:"""|\z)|'''((?s:\\.|.)*?)(?:'''|\z)|"((?:(?s:\\.)|[^"\\\n])*)"?|'((?:(?s:\\.)|[^'\\\n])*)'?` +
	`|^[ \t]*(?:import|from)[ \t]+([\w., \t]+)` +
	`|([A-Za-z_][\w.]*)[ \t]*\(`)

// scan searches Python code for imports, calls and strings without parsing it. All its facts are unsure.
func (a *analysis) scan(code string, fixed *place) {
	tokens := pythonToken().FindAllStringSubmatchIndex(code, maxScanned)
	group := func(token []int, groups ...int) (string, bool) {
		for _, g := range groups {
			if token[2*g] >= 0 {
				return code[token[2*g]:token[2*g+1]], true
			}
		}
		return "", false
	}
	at, counted := place{line: 1}, 0
	for i, token := range tokens {
		start := token[0]
		at.line += strings.Count(code[counted:start], "\n")
		at.column = start - strings.LastIndexByte(code[:start], '\n')
		counted = start
		if fixed != nil {
			at = *fixed
		}
		if s, ok := group(token, 1, 2, 3, 4); ok {
			a.text(s, at)
		}
		if modules, ok := group(token, 5); ok {
			for name := range strings.SplitSeq(modules, ",") {
				if f := strings.Fields(name); len(f) > 0 {
					a.add(&fact{kind: kindImport, name: f[0], place: at, unsure: true})
				}
			}
		}
		if name, ok := group(token, 6); ok {
			arg := holeText
			if i+1 < len(tokens) && strings.Trim(code[token[1]:tokens[i+1][0]], " \t") == "" {
				if s, ok := group(tokens[i+1], 1, 2, 3, 4); ok {
					arg = s
				}
			}
			a.scannedCall(name, arg, at)
		}
	}
}

// scannedCall adds a call with its first argument, and the shell code that it runs.
func (a *analysis) scannedCall(name, arg string, at place) {
	a.add(&fact{kind: kindCall, name: name, place: at, unsure: true, args: []string{arg}})
	if slices.Contains(runsShell, name) && known(arg) {
		before := len(a.facts)
		newShell(a, &at, 1).nested(name, arg, at)
		for _, f := range a.facts[before:] {
			f.unsure = true
		}
	}
}
