package testneed

import (
	"testing"
	"time"
)

// awaitLimit bounds the wait for something that must happen. It is long because machines may be busy.
const awaitLimit = 30 * time.Second

// Await waits until a condition holds, and ends the test if it does not come true.
func Await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	AwaitFor(t, awaitLimit, what, ok)
}

// AwaitFor is Await with a limit of its own.
func AwaitFor(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	if !within(limit, ok) {
		t.Fatalf("did not happen within %s: %s", limit, what)
	}
}

// Eventually is Await for other goroutines than that of the test, which must not end it: it reports whether the condition came true.
func Eventually(ok func() bool) bool { return within(awaitLimit, ok) }

func within(limit time.Duration, ok func() bool) bool {
	for end := time.Now().Add(limit); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}
