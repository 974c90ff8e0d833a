//go:build !unix

package rlm

// lockRun does nothing: this platform has no locks that are released when a program dies.
func lockRun(string) (unlock func(), err error) { return func() {}, nil }

// running always returns false, because there are no locks.
func running(string) bool { return false }
