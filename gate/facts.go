package gate

import (
	"context"
	"hash/maphash"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// hole stands, in a text that was worked out by reading, for what cannot be known: a variable from outside, the output
// of a program. It is an ordinary rune, so that text with holes can be parsed again (for eval, say) and the holes stay in place.
const hole = '\uE000'

const holeText = string(hole)

// known reports whether a text has no holes.
func known(s string) bool { return !strings.ContainsRune(s, hole) }

// sanitize takes runes that look like holes out of what a caller sent.
func sanitize(s string) string {
	if !strings.ContainsRune(s, hole) {
		return s
	}
	return strings.ReplaceAll(s, holeText, string(utf8.RuneError))
}

// show gives a text for a message: short, holes as an ellipsis.
func show(s string) string {
	s = strings.ReplaceAll(s, holeText, "…")
	s = strings.Join(strings.Fields(s), " ")
	if utf8.RuneCountInString(s) > 80 {
		s = string([]rune(s)[:79]) + "…"
	}
	return s
}

// The limits of one judgement. Past them the judge says that it cannot decide.
const (
	maxShellCode  = 1 << 20 // bytes of bash; its parser recurses on our stack
	maxPythonCode = 4 << 20 // bytes of Python
	maxSteps      = 100_000 // statements walked
	maxFacts      = 20_000
	maxNesting    = 8    // code in code: eval in bash -c in os.system …
	maxText       = 4096 // bytes of one argument that are compared with patterns
)

// kind is what sort of thing a fact is.
type kind int

const (
	kindCommand kind = iota + 1 // a program is run: name, args
	kindCall                    // a Python function is called: dotted name, args, keywords
	kindImport                  // a module is imported: name
	kindWrite                   // a file is written: args[0]
	kindRead                    // a file is read: args[0]
	kindText                    // text in the code: args[0]
	kindShape                   // a pattern of the code itself: name
	kindOpaque                  // something reading cannot decide: name says what, args[0] tells
)

// shapeForkBomb is code that starts itself until the machine is full.
const shapeForkBomb = "fork-bomb"

// The names of opaque facts.
const (
	opaqueCommand = "command" // which program is run
	opaqueCode    = "code"    // what code is run
	opaqueSyntax  = "syntax"  // the code could not be parsed
	opaqueSize    = "size"    // the code is too large or too deep to be judged whole
)

// place is where in the code something stands.
type place struct{ line, column int }

// fact is one thing the code would do.
type fact struct {
	kind     kind
	name     string
	args     []string
	keywords map[string]string
	from     []string // commands whose output it reads
	cwd      string   // where it runs; empty: unknown
	place    place
	unsure   bool // seen by a judge that cannot tell whether it happens
}

// seed makes the keys of facts unguessable, so that no code can be written whose facts look the same.
var seed = maphash.MakeSeed()

// key tells facts apart, by their place too if asked.
func (f *fact) key(placed bool) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	text := func(mark byte, s string) {
		_ = h.WriteByte(mark) // never fails
		_, _ = h.WriteString(s)
	}
	text(byte(f.kind), f.name)
	for _, s := range f.args {
		text(1, s)
	}
	for _, s := range f.from {
		text(2, s)
	}
	for _, k := range slices.Sorted(maps.Keys(f.keywords)) {
		text(3, k)
		text(4, f.keywords[k])
	}
	text(5, f.cwd)
	if f.unsure {
		text(6, "")
	}
	if placed {
		text(7, strconv.Itoa(f.place.line))
	}
	return h.Sum64()
}

// analysis gathers the facts of one request. It is used by one goroutine.
type analysis struct {
	ctx    context.Context //nolint:containedctx // lives as long as one Judge
	parser *pythonParser   // nil: none on this host
	facts  []*fact
	seen   map[uint64]bool
	files  map[string]string // what the code itself wrote into files, by path
	steps  int
	spent  bool // a limit was passed and told
}

func newAnalysis(ctx context.Context, parser *pythonParser) *analysis {
	return &analysis{ctx: ctx, parser: parser, seen: map[uint64]bool{}, files: map[string]string{}}
}

// add keeps a fact, once.
func (a *analysis) add(f *fact) {
	if len(a.facts) >= maxFacts {
		a.exhausted(f.place)
		return
	}
	k := f.key(true)
	if a.seen[k] {
		return
	}
	a.seen[k] = true
	a.facts = append(a.facts, f)
}

// step counts work, and reports whether there is any left to do.
func (a *analysis) step(p place) bool {
	a.steps++
	if a.steps > maxSteps || (a.steps%256 == 0 && a.ctx.Err() != nil) {
		a.exhausted(p)
		return false
	}
	return true
}

// exhausted tells, once, that not everything was judged.
func (a *analysis) exhausted(p place) {
	if a.spent {
		return
	}
	a.spent = true
	a.facts = append(a.facts, &fact{kind: kindOpaque, name: opaqueSize, args: []string{"the code does too much to be judged whole"}, place: p})
}

func (a *analysis) opaque(name, what string, p place) {
	a.add(&fact{kind: kindOpaque, name: name, args: []string{what}, place: p})
}

// text notes text for rules about secrets and hosts.
func (a *analysis) text(s string, p place) {
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "")
	}
	if len(s) >= 8 && known(s) {
		a.add(&fact{kind: kindText, args: []string{s}, place: p})
	}
}

// request gathers the facts of a whole request.
func (a *analysis) request(req *Request) {
	switch req.Language {
	case Python:
		a.python(sanitize(req.Code), nil, 0)
	case Command:
		args := make([]string, len(req.Args))
		for i, s := range req.Args {
			args[i] = sanitize(s)
		}
		sh := newShell(a, &place{line: 1, column: 1}, 0)
		for _, s := range args {
			a.text(s, place{line: 1, column: 1})
		}
		sh.run(args, stream{text: holeText}, place{line: 1, column: 1})
	default:
		sh := newShell(a, nil, 0)
		sh.script(sanitize(req.Code))
	}
}

// base is the name of a program without its directory.
func base(name string) string {
	if name == "" {
		return ""
	}
	return path.Base(name)
}
