package rules

import (
	"hash/maphash"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Runes with a special meaning in texts that the analysis determined. They are ordinary runes, so they stay in place
// when such a text is parsed again (for example by eval).
const (
	hole      = '\uE000' // unknown text: a variable from outside, the output of a program
	fieldEnd  = '\uE001' // where the shell splits an expansion into fields
	fieldMark = '\uE002' // something quoted, which is a field even if it is empty
	entryMark = '\uE003' // in python/values.py: a hole that is any entry of a directory

	holeText = string(hole)
)

// known reports whether a text has no holes.
func known(s string) bool { return !strings.ContainsRune(s, hole) }

// unreadable reports whether nothing of a piece of code is known.
func unreadable(code string) bool {
	return !known(code) && strings.Trim(code, holeText+" \t\n\"'") == ""
}

// sanitize replaces runes in the caller's code that have a meaning here. Bytes that are not UTF-8 stay as they are.
func sanitize(s string) string { return reserved.Replace(s) }

var reserved = strings.NewReplacer(holeText, "\uFFFD", string(fieldEnd), "\uFFFD", string(fieldMark), "\uFFFD",
	string(entryMark), "\uFFFD")

// show shortens a text for a message; holes become an ellipsis.
func show(s string) string {
	s = strings.Join(strings.Fields(strings.ReplaceAll(s, holeText, "…")), " ")
	if utf8.RuneCountInString(s) > 80 {
		s = string([]rune(s)[:79]) + "…"
	}
	return s
}

// kind is the sort of a fact.
type kind int

const (
	kindCommand kind = iota + 1 // a program is run: name, args
	kindCall                    // a Python function is called: dotted name, args, keywords
	kindImport                  // a module is imported: name
	kindWrite                   // a file is written: args[0]
	kindRead                    // a file is read: args[0]
	kindText                    // text in the code: args[0]
	kindShape                   // a pattern of the code itself: name
	kindOpaque                  // something cannot be determined: name is its sort, args[0] the message
)

// shapeForkBomb is code that starts itself until the machine is full.
const shapeForkBomb = "fork-bomb"

// The names of opaque facts.
const (
	opaqueCommand = "command" // which program is run
	opaqueCode    = "code"    // which code is run
	opaqueSyntax  = "syntax"  // the code cannot be parsed
	opaqueSize    = "size"    // the code is too large or too deep to be analyzed completely
)

// place is a position in the code.
type place struct{ line, column int }

// fact is one thing the code would do.
type fact struct {
	kind     kind
	name     string
	args     []string
	keywords map[string]string
	from     []string // commands whose output it reads
	reads    []string // files that the command reads
	writes   []string // files that the command writes
	cwd      string   // where it runs; empty: unknown
	place    place
	unsure   bool // found by scanning without parsing: the code may not do it
	doubt    bool // the code does it, but whether it is harmful cannot be determined
}

// seed makes the keys of facts unpredictable, so that an attacker cannot write code whose facts collide.
var seed = maphash.MakeSeed()

// key identifies a fact, including its line if placed.
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
	if f.doubt {
		text(8, "")
	}
	if placed {
		text(7, strconv.Itoa(f.place.line))
	}
	return h.Sum64()
}
