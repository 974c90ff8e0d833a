package testneed

import (
	"os"
	"strings"
	"sync"
	"testing"
)

// AllVariable is the environment variable that selects the largest tier: every test on every backend, as in make
// test-all.
const AllVariable = "RECLUSE_TEST_ALL"

// AllTests reports whether the largest tier runs. docs/DEVELOPMENT.md describes the tiers.
func AllTests() bool { return os.Getenv(AllVariable) != "" }

// Sandboxes skips a test that starts real sandboxes or other services if only the fast tier runs (go test -short, make
// check).
func Sandboxes(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("TIER: starts real sandboxes; runs in make test")
	}
}

// Slow skips a slow test if only the fast tier runs. reason names what takes so long.
func Slow(t testing.TB, reason string) {
	t.Helper()
	if testing.Short() {
		t.Skip("TIER: runs in make test: ", reason)
	}
}

// All skips a test that repeats, under other conditions, what a test of a smaller tier proves. reason names that test
// or mechanism.
func All(t testing.TB, reason string) {
	t.Helper()
	if !AllTests() {
		t.Skip("TIER: runs in make test-all: ", reason)
	}
}

// LiveVariable is the environment variable that allows tests to use services that cost money, as in make test-live.
const LiveVariable = "RECLUSE_TEST_LIVE"

// Live skips a test that uses a service that costs money, except in make test-live, and there without its keys. It
// returns the keys, which are in environment variables.
func Live(t testing.TB, variables ...string) (keys []string) {
	t.Helper()
	if os.Getenv(LiveVariable) == "" {
		t.Skip("TIER: uses a service that costs money; runs in make test-live")
	}
	for _, v := range variables {
		k := os.Getenv(v)
		if k == "" {
			t.Skip("TIER: there is no key: set ", v)
		}
		keys = append(keys, k)
	}
	return keys
}

// decided contains the tests for which Parallel or Alone was called. The testing package allows only one call of
// Parallel per test.
var decided sync.Map

// Alone prevents a top-level test from running in parallel, because it measures the whole program or changes shared
// state. Call it before any function that calls Parallel.
func Alone(t testing.TB) { decide(t) }

// Parallel runs a top-level test in parallel with others, unless it called Alone. It does nothing for a subtest,
// because its parent may use what the subtest changes. The -parallel flag sets the number of tests that run at once.
func Parallel(t testing.TB) {
	if top, ok := t.(*testing.T); ok && !strings.Contains(t.Name(), "/") && decide(t) {
		top.Parallel()
	}
}

// decide reports whether this is the first call for a test.
func decide(t testing.TB) bool {
	_, twice := decided.LoadOrStore(t, true)
	if !twice {
		t.Cleanup(func() { decided.Delete(t) })
	}
	return !twice
}
