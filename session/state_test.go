package session

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// readTable gives the states of a document, and what they may become.
func readTable(t *testing.T, file string, cells func(line string) (from, to string, ok bool)) map[State][]State {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	found := map[State][]State{}
	for line := range strings.Lines(string(text)) {
		from, to, ok := cells(line)
		if _, known := transitions[State(from)]; !ok || !known {
			continue
		}
		found[State(from)] = []State{}
		for _, w := range strings.FieldsFunc(to, func(r rune) bool { return strings.ContainsRune(" ;`\n", r) }) {
			found[State(from)] = append(found[State(from)], State(w))
		}
	}
	return found
}

func TestTheTableInTheDocumentIsTheOneInTheCode(t *testing.T) {
	for file, cells := range map[string]func(line string) (from, to string, ok bool){
		"doc.go": func(line string) (string, string, bool) {
			rest, ok := strings.CutPrefix(line, "//\t")
			from, to, _ := strings.Cut(rest, " ")
			return strings.TrimSpace(from), to, ok
		},
		"../docs/OPERATION.md": func(line string) (string, string, bool) {
			cells := strings.Split(line, "|")
			if len(cells) != 5 {
				return "", "", false
			}
			return strings.Trim(cells[1], " `"), cells[3], true
		},
	} {
		found := readTable(t, file, cells)
		for from, to := range transitions {
			if have, ok := found[from]; !ok || !slices.Equal(have, to) {
				t.Errorf("%s leads to %v, %s says %v", from, to, file, have)
			}
		}
	}
	for from, to := range transitions {
		for _, next := range to {
			if _, ok := transitions[next]; !ok {
				t.Errorf("%s leads to %s, which is no state", from, next)
			}
		}
	}
	for _, last := range []State{Ended, Expired} {
		if last.Live() || len(transitions[last]) != 0 {
			t.Errorf("%s is not the end", last)
		}
	}
}
