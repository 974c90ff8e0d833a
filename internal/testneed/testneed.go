// Package testneed ends tests that lack something of the machine: they are skipped, loudly, and in CI they fail, because
// there a skipped test would count as a passed one.
package testneed

import (
	"os"
	"testing"
)

// Lacking ends a test, and says what it lacks.
func Lacking(t testing.TB, what ...any) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(append([]any{"LACKING:"}, what...)...)
	}
	t.Skip(append([]any{"SKIPPED:"}, what...)...)
}

// Root ends a test that only root can run, and says why.
func Root(t testing.TB, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		Lacking(t, why+" needs root")
	}
}
