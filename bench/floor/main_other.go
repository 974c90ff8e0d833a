//go:build !linux

// Command floor runs in sandboxes, so on Linux only.
package main

func main() { panic("floor runs on Linux only") }
