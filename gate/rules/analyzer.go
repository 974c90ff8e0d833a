package rules

import (
	"context"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// The limits of one analysis. Beyond them the code is reported as too large to judge.
const (
	maxShellCode  = 1 << 20 // bytes of bash; its parser recurses on our stack
	maxPythonCode = 4 << 20 // bytes of Python
	maxSteps      = 100_000 // statements walked
	maxFacts      = 20_000
	maxNesting    = 8    // code in code: eval in bash -c in os.system …
	maxText       = 4096 // bytes of one argument that are compared with patterns
)

// NoPython disables parsing of Python. It is passed in place of the program that parses Python.
const NoPython = "none"

// Analyzer applies a set of rules to code. It is safe for concurrent use; Close it.
type Analyzer struct {
	set    *Set
	parser *pythonParser // nil: none on this host
}

// NewAnalyzer returns an analyzer. python is the program that parses Python. Empty: the host's Python; NoPython: none.
func NewAnalyzer(set *Set, python string) *Analyzer {
	a := &Analyzer{set: set}
	if python == "" {
		python = findPython()
	}
	if python != "" && python != NoPython {
		a.parser = newPythonParser(python)
	}
	return a
}

// Close kills the processes that parse Python.
func (a *Analyzer) Close() {
	if a.parser != nil {
		a.parser.close()
	}
}

// Findings returns the findings of the rules for a piece of code.
func (a *Analyzer) Findings(ctx context.Context, code Code) ([]Finding, error) {
	an := &analysis{ctx: ctx, parser: a.parser, seen: map[uint64]bool{}, files: map[string]string{}}
	an.code(code)
	if err := ctx.Err(); err != nil {
		return nil, &v1.Error{Code: v1.CodeCancelled, Op: "judge code", Message: "cancelled by the caller", Err: err}
	}
	return a.set.findings(an.facts, code.Language), nil
}

// analysis collects the facts of one piece of code. It is used by one goroutine.
type analysis struct {
	ctx    context.Context //nolint:containedctx // lives as long as one call of Findings
	parser *pythonParser   // nil: none on this host
	facts  []*fact
	seen   map[uint64]bool
	files  map[string]string // what the code itself wrote into files, by path
	steps  int
	spent  bool // a limit was exceeded and reported
}

// code collects the facts of the whole code.
func (a *analysis) code(code Code) {
	start := place{line: 1, column: 1}
	switch code.Language {
	case Python:
		a.python(sanitize(code.Text), nil, 0)
	case Command:
		args := make([]string, len(code.Args))
		for i, s := range code.Args {
			args[i] = sanitize(s)
			a.text(args[i], start)
		}
		newShell(a, &start, 0).run(args, unknown, start)
	default:
		newShell(a, nil, 0).script(sanitize(code.Text))
	}
}

// add records a fact, unless it is a duplicate.
func (a *analysis) add(f *fact) {
	if len(a.facts) >= maxFacts {
		a.exhausted(f.place)
		return
	}
	if k := f.key(true); !a.seen[k] {
		a.seen[k] = true
		a.facts = append(a.facts, f)
	}
}

// step counts one step, and reports whether the analysis may continue.
func (a *analysis) step(p place) bool {
	a.steps++
	if a.steps > maxSteps || (a.steps%256 == 0 && a.ctx.Err() != nil) {
		a.exhausted(p)
		return false
	}
	return true
}

// exhausted reports, once, that the code was analyzed only in part.
func (a *analysis) exhausted(p place) {
	if !a.spent {
		a.spent = true
		message := "the code is too long to be analyzed completely"
		a.facts = append(a.facts, &fact{kind: kindOpaque, name: opaqueSize, args: []string{message}, place: p})
	}
}

func (a *analysis) opaque(name, message string, p place) {
	a.add(&fact{kind: kindOpaque, name: name, args: []string{message}, place: p})
}

// opaqueCode records that code cannot be read. what names the command or function that runs the code.
func (a *analysis) opaqueCode(what string, p place) {
	a.opaque(opaqueCode, what+" runs code that cannot be determined", p)
}

// text records a text for the rules about secrets and hosts.
func (a *analysis) text(s string, p place) {
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "")
	}
	if len(s) >= 8 && known(s) {
		a.add(&fact{kind: kindText, args: []string{s}, place: p})
	}
}
