package testneed

import (
	"testing"
	"time"
)

// awaitLimit is how long to wait for something that must happen. It is long because machines may be busy.
const awaitLimit = 30 * time.Second

// Await waits until a condition holds. If it does not hold within 30 s, the test fails at once.
func Await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	AwaitFor(t, awaitLimit, what, ok)
}

// AwaitFor is Await with another limit.
func AwaitFor(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	if !within(limit, ok) {
		t.Fatalf("did not happen within %s: %s", limit, what)
	}
}

// Eventually is Await for goroutines other than that of the test, which must not end it. It reports whether the
// condition became true.
func Eventually(ok func() bool) bool { return within(awaitLimit, ok) }

func within(limit time.Duration, ok func() bool) bool {
	for end := time.Now().Add(limit); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}
