//go:build !linux

// Package fifo implements the byte stream to a guest with named pipes. Guests are Linux programs, so the package is
// empty on other systems.
package fifo
