package server

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// pageKey returns the sort key of an entry in a list that is ordered by name and creation time. The key of a page's
// last entry is the start of the next page, so entries that are removed meanwhile do not shift it.
func pageKey(name string, created time.Time, id string) string {
	// ! sorts before all characters that a name may contain.
	return fmt.Sprintf("%s!%020d!%s", name, created.UnixNano(), id)
}

// paged returns the page of a list that the query requests, sorted by key, and the value of after for the next page.
func paged[T any](c *call, all []T, key func(T) string) (page []T, next string) {
	limit := c.page()
	all = slices.SortedStableFunc(slices.Values(all), func(a, b T) int { return strings.Compare(key(a), key(b)) })
	after := c.query.Get("after")
	begin := 0
	for after != "" && begin < len(all) && key(all[begin]) <= after {
		begin++
	}
	page = append([]T{}, all[begin:]...)
	if len(page) > limit {
		page = page[:limit]
		next = key(page[limit-1])
	}
	return page, next
}
