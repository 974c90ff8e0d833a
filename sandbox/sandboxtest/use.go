package sandboxtest

import (
	"io"
	"testing"

	"github.com/recluse-dev/recluse/sandbox"
)

// Use returns a backend that was made with err, and closes it at the end of the test.
func Use[B io.Closer](t testing.TB, b B, err error) B {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// Open makes a sandbox that ends with the test.
func Open(t testing.TB, b sandbox.Backend, spec sandbox.Spec) *sandbox.Sandbox {
	t.Helper()
	sb, err := sandbox.Open(t.Context(), b, spec)
	return Use(t, sb, err)
}
