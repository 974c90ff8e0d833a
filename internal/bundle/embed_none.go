//go:build !bundle

package bundle

// embeddedPrograms is empty in a program that was not built by make build.
func embeddedPrograms() ([]Embedded, error) { return nil, nil }
