package rlm

import (
	"cmp"
	"slices"
)

// sortSpent puts usage in the order of depth, then name.
func sortSpent(s []Spent) []Spent {
	slices.SortFunc(s, func(a, b Spent) int { return cmp.Or(cmp.Compare(a.Depth, b.Depth), cmp.Compare(a.Model, b.Model)) })
	return s
}
