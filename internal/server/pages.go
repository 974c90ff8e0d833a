package server

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// place is where something stands in a list that is ordered by name and age. It is the text that one page gives for the next: what was
// removed meanwhile moves nothing.
func place(name string, made time.Time, id string) string {
	return fmt.Sprintf("%s!%020d!%s", name, made.UnixNano(), id) // no name has a sign before !
}

// paged gives the page of a list that the query asks for, in the order of the places, and where the next one begins.
func paged[T any](c *call, all []T, at func(T) string) (page []T, next string) {
	limit := c.page()
	all = slices.SortedStableFunc(slices.Values(all), func(a, b T) int { return strings.Compare(at(a), at(b)) })
	after := c.query.Get("after")
	begin := 0
	for after != "" && begin < len(all) && at(all[begin]) <= after {
		begin++
	}
	page = append([]T{}, all[begin:]...)
	if len(page) > limit {
		page = page[:limit]
		next = at(page[limit-1])
	}
	return page, next
}
