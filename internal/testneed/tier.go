package testneed

import (
	"os"
	"strings"
	"sync"
	"testing"
)

// AllVariable selects the widest tier: every test on every backend, as make test-all runs them.
const AllVariable = "RECLUSE_TEST_ALL"

// AllTests reports whether the widest tier runs. The tiers are described in docs/DEVELOPMENT.md.
func AllTests() bool { return os.Getenv(AllVariable) != "" }

// Sandboxes skips a test that starts real sandboxes or other services when only the fast tier runs (go test -short, make check).
func Sandboxes(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("TIER: starts real sandboxes; runs in make test")
	}
}

// Slow skips a test that is slow by nature when only the fast tier runs. The reason says what takes so long.
func Slow(t testing.TB, reason string) {
	t.Helper()
	if testing.Short() {
		t.Skip("TIER: runs in make test: ", reason)
	}
}

// All skips a test that repeats under other conditions what another test of a smaller tier proves. The reason names that test or mechanism.
func All(t testing.TB, reason string) {
	t.Helper()
	if !AllTests() {
		t.Skip("TIER: runs in make test-all: ", reason)
	}
}

// decided holds the tests of which Parallel or Alone was called: the testing package allows one call of Parallel each.
var decided sync.Map

// Alone keeps a top-level test from running beside others, because it measures the whole program or changes something that all share. Call it before
// whatever calls Parallel.
func Alone(t testing.TB) { decide(t) }

// Parallel runs a top-level test beside others, unless it called Alone. A subtest stays where it is: its parent may use what the subtest changes.
// The -parallel flag says how many run at once.
func Parallel(t testing.TB) {
	if top, ok := t.(*testing.T); ok && !strings.Contains(t.Name(), "/") && decide(t) {
		top.Parallel()
	}
}

// decide reports whether this is the first decision about a test.
func decide(t testing.TB) bool {
	_, twice := decided.LoadOrStore(t, true)
	if !twice {
		t.Cleanup(func() { decided.Delete(t) })
	}
	return !twice
}
