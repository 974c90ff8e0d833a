package volumes

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// verify runs the tests and checks for goroutines that are left.
func verify(m *testing.M) int {
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
