package gate

import (
	"math/bits"
	"slices"
	"sort"
	"strings"
	"unicode/utf8"
)

// distance is how many letters must be changed to make b of a, with two neighbours swapped counting as one;
// limit when it is not below that.
func distance(a, b string, limit int) int {
	var roomX, roomY [48]rune // words are short: no need for the heap
	x, y := appendRunes(roomX[:0], a), appendRunes(roomY[:0], b)
	if len(x)-len(y) >= limit || len(y)-len(x) >= limit {
		return limit
	}
	var room [3 * 49]int
	rows := room[:]
	if len(y) > 48 {
		rows = make([]int, 3*(len(y)+1))
	}
	n := len(y) + 1
	before, prev, cur := rows[:n], rows[n:2*n], rows[2*n:3*n]
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(x); i++ {
		cur[0] = i
		least := cur[0]
		for j := 1; j <= len(y); j++ {
			cost := 1
			if x[i-1] == y[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
			least = min(least, cur[j])
		}
		if least >= limit {
			return limit
		}
		before, prev, cur = prev, cur, before
	}
	return min(prev[len(y)], limit)
}

func appendRunes(into []rune, s string) []rune {
	for _, r := range s {
		into = append(into, r)
	}
	return into
}

// nearIndex finds terms near a word. For each term it holds which letters are in it: most terms are passed over by one
// comparison of those.
type nearIndex struct {
	terms  []string
	lower  []string
	mask   []uint64
	runes  []uint16 // lengths
	sorted []int32  // terms by their small letters, for those that begin with the word
}

func newNearIndex(terms []string) *nearIndex {
	x := &nearIndex{terms: terms, lower: make([]string, len(terms)), mask: make([]uint64, len(terms)), runes: make([]uint16, len(terms)), sorted: make([]int32, len(terms))}
	for i, t := range terms {
		x.lower[i] = strings.ToLower(t)
		x.mask[i] = letters(x.lower[i])
		x.runes[i] = uint16(utf8.RuneCountInString(x.lower[i])) // at most maxTerm
		x.sorted[i] = int32(i)
	}
	slices.SortFunc(x.sorted, func(a, b int32) int { return strings.Compare(x.lower[a], x.lower[b]) })
	return x
}

// letters is a set of the letters in a word.
func letters(s string) uint64 {
	var m uint64
	for _, r := range s {
		m |= 1 << (r & 63)
	}
	return m
}

// find gives up to most terms near a word: by few changed letters, then those that begin with it.
func (x *nearIndex) find(word string, most int) []string {
	limit := 2 // changes; more for long words
	if len(word) > 5 {
		limit = 3
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
		// A change of one letter changes the set by two at most, and the length by one.
		if bits.OnesCount64(m^mask) > 2*(limit-1) || int(x.runes[i])-length >= limit || length-int(x.runes[i]) >= limit {
			continue
		}
		if d := distance(word, x.lower[i], limit); d < limit {
			found = append(found, candidate{term: int32(i), distance: d})
		}
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return a.distance - b.distance })
	out := make([]string, 0, most)
	for _, c := range found {
		if len(out) < most {
			out = append(out, x.terms[c.term])
		}
	}
	from := sort.Search(len(x.sorted), func(i int) bool { return x.lower[x.sorted[i]] >= word })
	for ; from < len(x.sorted) && len(out) < most && strings.HasPrefix(x.lower[x.sorted[from]], word); from++ {
		if t := x.terms[x.sorted[from]]; !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return out
}
