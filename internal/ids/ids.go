// Package ids generates random names: ids of sandboxes and snapshots, tokens, names of temporary files.
package ids

import (
	"crypto/rand"
	"encoding/hex"
)

// Hex returns n random bytes as lower-case hexadecimal digits, which are valid in file names, host names and names of
// container engines. Eight bytes are enough for a unique name.
func Hex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
