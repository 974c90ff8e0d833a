// Package lazyregexp compiles regular expressions at their first use. Package-level expressions are otherwise compiled whenever the program starts,
// also for the many verbs that never match anything, and a bounded repetition such as {0,63} is a large program.
package lazyregexp

import (
	"regexp"
	"sync"
)

// New returns a function that compiles expr when it is called first. It panics then if expr is invalid.
func New(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}
