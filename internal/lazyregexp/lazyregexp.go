// Package lazyregexp compiles regular expressions at their first use. Otherwise package-level expressions are compiled
// at every start of the program, even for the many commands that never match anything, and a bounded repetition such as
// {0,63} compiles to a large program.
package lazyregexp

import (
	"regexp"
	"sync"
)

// New returns a function that compiles expr at its first call. That call panics if expr is invalid.
func New(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}
