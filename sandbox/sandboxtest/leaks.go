package sandboxtest

import (
	"time"

	"go.uber.org/goleak"
)

// leakWait is how long goroutines may take to end on a busy machine.
const leakWait = 20 * time.Second

// Leaks returns an error if goroutines do not end within leakWait. It is for packages whose tests need more time for
// clean-up than goleak waits.
func Leaks() (err error) {
	for end := time.Now().Add(leakWait); ; {
		if err = goleak.Find(); err == nil || time.Now().After(end) {
			return err
		}
	}
}
