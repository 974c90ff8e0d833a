package rlm

import "strings"

// stripFence takes a JSON text out of the block that models like to put it in.
func stripFence(s string) string {
	s = strings.TrimSpace(s)
	line, next := lineAt(s, 0)
	f, ok := openFence(line)
	if !ok {
		return s
	}
	body, _, _ := readBlock(s, next, f, false)
	return strings.TrimSpace(body)
}
