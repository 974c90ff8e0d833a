//go:build !unix

package rlm

// lockRun does nothing here: there are no locks that go with their program.
func lockRun(string) (unlock func(), err error) { return func() {}, nil }

// running is not known here.
func running(string) bool { return false }
