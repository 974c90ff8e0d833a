package session

import (
	"os"
	"slices"
	"strings"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// readTable returns the states in the table of a document, with their transitions. A line belongs to the table if it
// begins with a state and lists only states.
func readTable[S ~string](t *testing.T, file string, table map[S][]S, cells func(line string) (from, to string, ok bool)) map[S][]S {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	found := map[S][]S{}
	for line := range strings.Lines(string(text)) {
		from, to, ok := cells(line)
		if _, known := table[S(from)]; !ok || !known {
			continue
		}
		next := []S{}
		for _, w := range strings.FieldsFunc(to, func(r rune) bool { return strings.ContainsRune(" ;`\n", r) }) {
			next = append(next, S(w))
		}
		if slices.ContainsFunc(next, func(s S) bool { _, known := table[s]; return !known }) {
			continue // what the state means
		}
		found[S(from)] = next
	}
	return found
}

// comment returns the text of a table line in a package comment.
func comment(line string) (from, to string, ok bool) {
	rest, ok := strings.CutPrefix(line, "//\t")
	from, to, _ = strings.Cut(rest, " ")
	return strings.TrimSpace(from), to, ok
}

// sameTable checks that the table of a document equals the table in the code.
func sameTable[S ~string](t *testing.T, file string, table map[S][]S, cells func(line string) (from, to string, ok bool)) {
	t.Helper()
	found := readTable(t, file, table, cells)
	for from, to := range table {
		if have, ok := found[from]; !ok || !slices.Equal(have, to) {
			t.Errorf("%s leads to %v, %s says %v", from, to, file, have)
		}
		for _, next := range to {
			if _, ok := table[next]; !ok || next == from {
				t.Errorf("%s leads to %s", from, next)
			}
		}
	}
}

func TestTheTableInTheDocumentIsTheOneInTheCode(t *testing.T) {
	sameTable(t, "doc.go", transitions, comment)
	sameTable(t, "../docs/OPERATION.md", transitions, func(line string) (string, string, bool) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			return "", "", false
		}
		return strings.Trim(cells[1], " `"), cells[3], true
	})
	for _, last := range []State{v1.StateEnded, v1.StateExpired} {
		if last.Live() || len(transitions[last]) != 0 {
			t.Errorf("%s is not the end", last)
		}
	}
}
