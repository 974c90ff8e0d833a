package statefile

import "time"

// proof is something that was seen to hold, and when.
type proof[T comparable] struct {
	Of T         `json:"of"`
	At time.Time `json:"at"`
}

// Prove notes that something holds now, with all that it depends on, for programs that would have to find out again.
func Prove[T comparable](path string, of T) error {
	return Write(path, proof[T]{of, time.Now().UTC()})
}

// Proven gives what was last proved, unless that is too long ago.
func Proven[T comparable](path string, within time.Duration) (of T, ok bool) {
	var p proof[T]
	if Read(path, &p) != nil {
		return of, false
	}
	age := time.Since(p.At)
	return p.Of, age >= 0 && age < within
}
