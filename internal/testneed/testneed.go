// Package testneed ends tests whose requirements this machine does not meet. They are skipped with a message. In CI
// they fail, because there a skipped test would count as passed.
package testneed

import (
	"os"
	"testing"
)

// Lacking ends a test and reports what is missing.
func Lacking(t testing.TB, what ...any) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(append([]any{"LACKING:"}, what...)...)
	}
	t.Skip(append([]any{"SKIPPED:"}, what...)...)
}

// Root ends a test that requires root if this user is not root. why names what requires root.
func Root(t testing.TB, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		Lacking(t, why+" needs root")
	}
}
