package terms

import (
	"math/bits"
	"slices"
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/recluse-dev/recluse/internal/editdistance"
)

// nearIndex finds terms that are spelled like a word. It holds a set of the letters of each term: most terms are
// skipped by one comparison of these sets.
type nearIndex struct {
	terms  []string
	lower  []string
	mask   []uint64
	runes  []uint16 // lengths
	sorted []int32  // terms in the order of lower, to find those that begin with a word
}

func newNearIndex(terms []string) *nearIndex {
	x := &nearIndex{
		terms:  terms,
		lower:  make([]string, len(terms)),
		mask:   make([]uint64, len(terms)),
		runes:  make([]uint16, len(terms)),
		sorted: make([]int32, len(terms)),
	}
	for i, t := range terms {
		x.lower[i] = strings.ToLower(t)
		x.mask[i] = letters(x.lower[i])
		x.runes[i] = uint16(utf8.RuneCountInString(x.lower[i])) // at most maxTerm
		x.sorted[i] = int32(i)
	}
	slices.SortFunc(x.sorted, func(a, b int32) int { return strings.Compare(x.lower[a], x.lower[b]) })
	return x
}

// letters returns the set of letters of a word, six bits of each.
func letters(s string) uint64 {
	var m uint64
	for _, r := range s {
		m |= 1 << (r & 63)
	}
	return m
}

// find returns up to limit terms near a word: first those with few letters changed, then those that begin with it.
func (x *nearIndex) find(word string, limit int) []string {
	changes := 2 // one below this; two in long words
	if len(word) > 5 {
		changes = 3
	}
	if len(word) > 64 {
		return nil
	}
	type candidate struct {
		term     int32
		distance int
	}
	var found []candidate
	mask, length := letters(word), utf8.RuneCountInString(word)
	for i, m := range x.mask {
		// Changing one letter changes the set by at most two, and the length by one.
		if bits.OnesCount64(m^mask) > 2*(changes-1) || max(int(x.runes[i])-length, length-int(x.runes[i])) >= changes {
			continue
		}
		if d := editdistance.Distance(word, x.lower[i], changes); d < changes {
			found = append(found, candidate{term: int32(i), distance: d})
		}
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return a.distance - b.distance })
	out := make([]string, 0, limit)
	for _, c := range found[:min(len(found), limit)] {
		out = append(out, x.terms[c.term])
	}
	from := sort.Search(len(x.sorted), func(i int) bool { return x.lower[x.sorted[i]] >= word })
	for ; from < len(x.sorted) && len(out) < limit && strings.HasPrefix(x.lower[x.sorted[from]], word); from++ {
		if t := x.terms[x.sorted[from]]; !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return out
}
