package sandboxtest

import (
	"time"

	"go.uber.org/goleak"
)

// leakWait is how long goroutines may take to end on a busy machine.
const leakWait = 20 * time.Second

// Leaks finds goroutines that do not end. It is for packages whose tests have more to clear away than goleak waits for.
func Leaks() (err error) {
	for end := time.Now().Add(leakWait); ; {
		if err = goleak.Find(); err == nil || time.Now().After(end) {
			return err
		}
	}
}
