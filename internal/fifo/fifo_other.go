//go:build !linux

// Package fifo makes the byte stream to a guest out of named pipes. Guests are Linux programs, so
// elsewhere there is nothing of it.
package fifo
