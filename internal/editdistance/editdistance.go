// Package editdistance computes the distance between two words, for suggestions such as "did you mean".
package editdistance

// Distance returns the number of letters that must be inserted, removed, replaced, or swapped with their neighbour to
// turn a into b. If the distance is not below limit, it stops early and returns limit.
//
// It is called for 100,000 terms for each unknown word of a refused request, so short words need no allocation.
func Distance(a, b string, limit int) int {
	var roomX, roomY [48]rune
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
