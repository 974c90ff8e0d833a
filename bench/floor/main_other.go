//go:build !linux

// Command floor runs in sandboxes, and therefore only on Linux.
package main

func main() { panic("floor runs on Linux only") }
