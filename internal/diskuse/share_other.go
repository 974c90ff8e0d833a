//go:build !linux

package diskuse

// SharesBlocks reports whether files in a directory can share their blocks; known is false because it cannot be tried
// here.
func SharesBlocks(string) (shares, known bool) { return false, false }
