package session

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestTheTableInTheDocumentIsTheOneInTheCode(t *testing.T) {
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	found := map[State][]State{}
	for line := range strings.Lines(string(text)) {
		rest, ok := strings.CutPrefix(line, "//\t")
		if !ok {
			continue
		}
		words := strings.FieldsFunc(rest, func(r rune) bool { return r == ' ' || r == ';' || r == '\n' })
		if len(words) == 0 {
			continue
		}
		from := State(words[0])
		if _, ok := transitions[from]; !ok {
			continue
		}
		found[from] = []State{}
		for _, w := range words[1:] {
			found[from] = append(found[from], State(w))
		}
	}
	for from, to := range transitions {
		if !slices.Equal(found[from], to) {
			t.Errorf("%s leads to %v, the document says %v", from, to, found[from])
		}
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
