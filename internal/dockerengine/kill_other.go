//go:build !linux

package dockerengine

// killContainer can do nothing here: the engine's processes are in a machine of their own.
func killContainer(string) {}
