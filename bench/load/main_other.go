//go:build !linux

// Command load runs in sandboxes, and therefore only on Linux.
package main

func main() { panic("load runs on Linux only") }
